//! Runs scripts against a `State`: each command of a script is one command of the log, or a view.

mod args;
mod dataset;
mod dynamic;
mod event;
mod job;
mod loader;
mod operator;
mod view;

use std::collections::BTreeMap;

use goldenscript::{Context, Runner};
use shardfeed_plan::Digest;
use shardfeed_scheduler::{Answer, Change, Command, JoinSession, SessionId, State};

use args::{Args, Failed};
use loader::Loader;

/// Output of a script's command: one fact per line.
type Output = Result<String, Failed>;

/// The state, and the knowledge that workers and trainers have of it.
#[derive(Default)]
pub(crate) struct Script {
    state: State,
    now_ms: u64,
    caller: Caller,
    /// Last session of each worker.
    sessions: BTreeMap<String, SessionId>,
    /// Fencing token of the last scan of each worker and dataset.
    scans: BTreeMap<(String, String), u64>,
    /// Loader of each job and rank.
    loaders: BTreeMap<(String, u64), Loader>,
    /// Samples of each group of a dynamic job's epochs.
    groups: BTreeMap<String, Vec<u64>>,
    /// Digests of the mixtures of each job, in the order of their registrations.
    mixtures: BTreeMap<String, Vec<Digest>>,
}

/// Caller of a command; any command may name it (`by=`, `scope=`, `id=`).
#[derive(Default)]
struct Caller {
    principal: String,
    scope: Vec<String>,
    request_id: String,
}

/// An applied command.
struct Done {
    answer: Answer,
    /// Lines that follow the answer: its events.
    effects: Vec<String>,
}

impl Done {
    /// Returns a line and the effects.
    fn say(&self, line: impl Into<String>) -> Output {
        let lines = std::iter::once(line.into()).chain(self.effects.iter().cloned());
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }
}

impl Runner for Script {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Output {
        let mut args = Args::new(command);
        self.caller = Caller {
            principal: args.or("by", "test".to_owned())?,
            scope: args.list("scope")?,
            request_id: args.or("id", String::new())?,
        };
        let output = self.dispatch(&command.name, &mut args)?;
        args.finish()?;
        Ok(output)
    }

    /// Checks the invariants after each command, and that a snapshot is the whole state.
    fn end_command(&mut self, _: &goldenscript::Command, _: &Context) -> Output {
        self.state.check()?;
        let again = State::from_snapshot(&self.state.snapshot())?;
        assert_eq!(again, self.state);
        Ok(String::new())
    }
}

impl Script {
    fn dispatch(&mut self, name: &str, args: &mut Args) -> Output {
        match name {
            "sleep" => self.sleep(args),
            "join" => self.join(args),
            "leave" => self.leave(args),
            "expire" => self.expire(args),
            "heartbeat" => self.heartbeat(args),
            "show" => self.show(args),
            _ => self.dispatch_dataset(name, args),
        }
    }

    /// Applies one command of the log. A refusal is an error: its line begins with `!`.
    fn apply(&mut self, change: Change) -> Result<Done, Failed> {
        let seen = self.state.last_event();
        let Caller { principal, scope, request_id } = &self.caller;
        let (principal, scope) = (principal.clone(), scope.clone());
        let (request_id, now_ms) = (request_id.clone(), self.now_ms);
        let command = Command { request_id, principal, scope, now_ms, change };
        let applied = self.state.apply(self.state.applied() + 1, &command);
        let mut effects: Vec<String> = self.state.events_after(seen).map(event::line).collect();
        if applied.repeated {
            effects.push("  (the first answer again; nothing changed)".to_owned());
        }
        match applied.answer {
            Ok(answer) => Ok(Done { answer, effects }),
            Err(refusal) => {
                assert_eq!(self.state.last_event(), seen, "a refused command has events");
                let lines = std::iter::once(refusal.to_string()).chain(effects);
                Err(lines.collect::<Vec<_>>().join("\n").into())
            }
        }
    }

    /// `sleep MS`: the clock of the proposer advances.
    fn sleep(&mut self, args: &mut Args) -> Output {
        self.now_ms += args::number(args.word("a number of ms")?)?;
        Ok(format!("the clock shows {} ms", self.now_ms))
    }

    /// `join WORKER [incarnation=i1] [ttl=10000] [inside=true] [proved=true] [roots="FOLDER ..."]`
    fn join(&mut self, args: &mut Args) -> Output {
        let worker = args.word("a worker")?.to_owned();
        let join = JoinSession {
            worker: worker.clone(),
            host: "h1".to_owned(),
            incarnation: args.or("incarnation", "i1".to_owned())?,
            version: "0.1.0".to_owned(),
            in_process: args.or("inside", false)?,
            ttl_ms: args.or("ttl", 10_000)?,
            endpoint: String::new(),
            decoders: vec![],
            proved: args.or("proved", false)?,
            data_roots: args.list("roots")?,
        };
        let done = self.apply(Change::JoinSession(join))?;
        let Answer::Joined { session } = done.answer else { return Err("no session".into()) };
        self.sessions.insert(worker.clone(), session);
        done.say(format!("worker {worker} has session {session}"))
    }

    /// `leave WORKER [session=N]`
    fn leave(&mut self, args: &mut Args) -> Output {
        let worker = args.word("a worker")?;
        let session = self.session(worker, args)?;
        self.apply(Change::LeaveSession { session })?.say(format!("worker {worker} left"))
    }

    /// `expire WORKER ...`: the leader received no heartbeat for the ttl of these sessions.
    fn expire(&mut self, args: &mut Args) -> Output {
        let mut sessions = vec![];
        for worker in args.words() {
            sessions.push(self.session(worker, args)?);
        }
        let text = sessions.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        self.apply(Change::ExpireSessions { sessions })?.say(format!("expired: session {text}"))
    }

    /// `heartbeat WORKER [session=N]`: the leader's answer to a heartbeat, which is not in the log.
    fn heartbeat(&mut self, args: &mut Args) -> Output {
        let worker = args.word("a worker")?;
        let session = self.session(worker, args)?;
        let leases = &self.state.live_session(session)?.leases;
        let leases = leases.iter().filter_map(|rank| self.state.lease_of(rank));
        let leases = leases.filter(|lease| self.state.verdict(lease).is_ok());
        let leases = leases.map(|lease| {
            format!("\n  lease {}: rank {} of {}", lease.fencing, lease.rank, lease.job)
        });
        Ok(format!("session {session} of worker {worker} is live{}", leases.collect::<String>()))
    }

    /// Session of a worker: `session=`, or its last one.
    fn session(&self, worker: &str, args: &mut Args) -> Result<SessionId, Failed> {
        let known = self.sessions.get(worker).copied();
        let given = args.key("session")?;
        given.or(known).ok_or_else(|| format!("worker {worker} never joined").into())
    }
}
