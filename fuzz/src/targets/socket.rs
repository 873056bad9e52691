//! Trainer socket: a worker that receives any bytes returns an error or messages.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use prost::Message;
use shardfeed_proto::trainer::v1::{Hello, Register, ToTrainer, ToWorker, to_worker};
use shardfeed_socket::{Connection, ListenOptions, Listener};

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "socket", run, seeds };

/// Number of bytes that fit into a socket's buffer without a reader.
const SENT_MAX: usize = 64 << 10;

/// Not reached in practice: all bytes are available before they are read.
const TIMEOUT: Duration = Duration::from_secs(20);

fn frame(message: &ToWorker) -> Vec<u8> {
    let body = message.encode_to_vec();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let preamble = [&b"shardfeed"[..], &[1, 1], &[0; 5]].concat();
    let message = |message| ToWorker { message: Some(message), ..ToWorker::default() };
    let hello = frame(&message(to_worker::Message::Hello(Hello {
        trainer: "t".to_owned(),
        ..Hello::default()
    })));
    let register = frame(&message(to_worker::Message::Register(Register {
        job: "j".to_owned(),
        record_spec: shardfeed_reader::EncodedSpec::raw().bytes().to_vec(),
        tables: vec![],
        ..Register::default()
    })));
    vec![
        vec![],
        preamble.clone(),
        [&preamble[..], &hello].concat(),
        [&preamble[..], &hello, &register, &hello].concat(),
        b"GET / HTTP/1.1\r\n".to_vec(),
    ]
}

fn listener() -> &'static Listener {
    static LISTENER: OnceLock<Listener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let path = super::scratch("socket").with_extension("sock");
        Listener::bind(&path, ListenOptions::default()).expect("the scratch folder takes a socket")
    })
}

fn run(input: &[u8]) -> String {
    let listener = listener();
    let mut client = UnixStream::connect(listener.path()).expect("it listens");
    client.write_all(&input[..input.len().min(SENT_MAX)]).expect("the buffer takes it");
    client.shutdown(Shutdown::Write).expect("it is open");
    let incoming = listener.accept(TIMEOUT).expect("it listens").expect("a client connected");
    let connection: Connection<ToTrainer, ToWorker> = match incoming.handshake(TIMEOUT) {
        Ok(connection) => connection,
        Err(error) => return gist(error),
    };
    let (_sender, mut receiver) = connection.split();
    let mut messages = 0;
    loop {
        match receiver.recv(TIMEOUT) {
            Ok(Some((_, descriptor))) => {
                assert!(descriptor.is_none(), "no descriptor was sent");
                messages += 1;
            }
            Ok(None) => panic!("a stream that has ended is waited for"),
            Err(error) => return format!("{} {}", size(messages), gist(error)),
        }
    }
}
