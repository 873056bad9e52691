//! Options of a coordinator: one struct for the process, read from TOML or filled by tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Options of a coordinator, kebab-case in TOML (docs/CONFIG.md). Only `data-dir` has no default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CoordinatorOptions {
    /// Folder for all data that must outlive the process: log, snapshots, chunks. Created if
    /// missing; one process at a time.
    pub data_dir: PathBuf,
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics. `None` serves none, which only code can request.
    #[serde(default = "default_http", skip_serializing_if = "Option::is_none")]
    pub http: Option<SocketAddr>,
    /// Folder with `ca.crt`, `tls.crt` and `tls.key`: callers must authenticate. `None`: they are
    /// not authenticated, and only this host may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<PathBuf>,
    /// Without `tls`, listen also where other hosts can call, with full access for every caller.
    #[serde(default)]
    pub insecure: bool,
    /// This node's number in its cluster, from 1 on. It is fixed at the first start; a node that
    /// lost its data folder returns under a number that was never used.
    #[serde(default = "number::<1>")]
    pub node_id: u64,
    /// `None`: this node's entry in `peers`, else `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Nodes that found a cluster together: "NUMBER=HOST:PORT" each, the same list on all of them;
    /// 1, 3 or 5. This node is one of them, unless it has `join`, too. Not used once the node is
    /// part of a cluster. Empty: a cluster of this node alone.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Nodes of a cluster that this one joins, HOST:PORT each. May be combined with `peers`, so
    /// that all nodes start with the same options: a founder that finds a cluster there waits to be
    /// added to it, and founds one only when all of `peers` and `join` answer that there is none.
    #[serde(default)]
    pub join: Vec<String>,
    /// The caller that runs the coordinator writes the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_file: Option<PathBuf>,
    #[serde(default = "number::<100>")]
    pub peer_heartbeat_ms: u64,
    /// At least two heartbeats.
    #[serde(default = "number::<300>")]
    pub election_min_ms: u64,
    #[serde(default = "number::<600>")]
    pub election_max_ms: u64,
    #[serde(default = "default_cluster_name")]
    pub cluster_name: String,
    #[serde(default = "number::<10_000>")]
    pub session_ttl_ms: u64,
    /// Between workers' heartbeats; at most a third of the ttl.
    #[serde(default = "number::<2_000>")]
    pub heartbeat_ms: u64,
    /// Changes between two snapshots; the log keeps the changes after the older of the last two.
    #[serde(default = "number::<10_000>")]
    pub snapshot_every: u64,
    #[serde(default = "number::<{ 4 << 30 }>")]
    pub unreferenced_bytes_max: u64,
}

/// Error of an invalid option, or of two that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option `{option}`: {reason}")]
pub struct InvalidOption {
    pub option: &'static str,
    pub reason: String,
}

fn number<const NUMBER: u64>() -> u64 {
    NUMBER
}

fn default_listen() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 7070).into()
}

fn default_http() -> Option<SocketAddr> {
    Some((Ipv4Addr::LOCALHOST, 7071).into())
}

fn default_cluster_name() -> String {
    "shardfeed".into()
}

impl CoordinatorOptions {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let defaults = serde_json::from_str(r#"{"data-dir":""}"#);
        let defaults: Self = defaults.expect("every option but the folder has a default");
        Self { data_dir: data_dir.into(), ..defaults }
    }

    /// Checks that the options fit together.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        let (ttl, heartbeat) = (self.session_ttl_ms, self.heartbeat_ms);
        if self.data_dir.as_os_str().is_empty() {
            return refuse("data-dir", "is empty; name a folder on a disk that stays");
        }
        if self.cluster_name.is_empty() || self.cluster_name.len() > CLUSTER_NAME_BYTES_MAX {
            return refuse("cluster-name", format!("has 1 to {CLUSTER_NAME_BYTES_MAX} bytes"));
        }
        if !(SESSION_TTL_MS_MIN..=SESSION_TTL_MS_MAX).contains(&ttl) {
            let bounds = format!("{SESSION_TTL_MS_MIN} to {SESSION_TTL_MS_MAX} ms");
            return refuse("session-ttl-ms", format!("is {ttl}; sessions live {bounds}"));
        }
        if heartbeat == 0 || heartbeat.saturating_mul(3) > ttl {
            let most = ttl / 3;
            let reason = format!(
                "is {heartbeat}, but two may be lost within session-ttl-ms={ttl}; use 1 to {most}"
            );
            return refuse("heartbeat-ms", reason);
        }
        if self.snapshot_every == 0 {
            return refuse("snapshot-every", "is 0; a log without snapshots grows for ever");
        }
        if self.unreferenced_bytes_max < UNREFERENCED_BYTES_MIN {
            let bytes = self.unreferenced_bytes_max;
            let reason = format!("is {bytes}; a single chunk may have {UNREFERENCED_BYTES_MIN}");
            return refuse("unreferenced-bytes-max", reason);
        }
        if self.http == Some(self.listen) && self.listen.port() != 0 {
            return refuse("http", format!("is {}, as `listen`; use two ports", self.listen));
        }
        self.validate_openness()?;
        self.validate_timers()?;
        self.validate_cluster()
    }

    /// Other hosts may call only if callers must authenticate, or if the operator allows it.
    fn validate_openness(&self) -> Result<(), InvalidOption> {
        if self.tls.is_some() && self.insecure {
            return refuse("insecure", "contradicts `tls`; leave one of them out");
        }
        let addresses = [("listen", Some(self.listen)), ("http", self.http)];
        for (option, address) in addresses {
            let open = address.filter(|address| !is_loopback(address.ip()));
            if let Some(address) = open.filter(|_| self.tls.is_none() && !self.insecure) {
                let reason = format!(
                    "is {address}, where other hosts can call, but callers are not authenticated; \
                     set `tls` (`shardfeed tls init` makes certificates), or `insecure` if \
                     everybody on that network may do anything"
                );
                return refuse(option, reason);
            }
        }
        Ok(())
    }

    fn validate_timers(&self) -> Result<(), InvalidOption> {
        let Self {
            peer_heartbeat_ms: heartbeat, election_min_ms: min, election_max_ms: max, ..
        } = *self;
        if heartbeat == 0 || heartbeat.saturating_mul(2) > min {
            let reason = format!(
                "is {heartbeat}, but two must fit into election-min-ms={min}; use 1 to {}",
                min / 2
            );
            return refuse("peer-heartbeat-ms", reason);
        }
        if max <= min || max > ELECTION_MS_MAX {
            let reason = format!(
                "is {max}; use more than election-min-ms={min}, better twice as much, and at most \
                 {ELECTION_MS_MAX}"
            );
            return refuse("election-max-ms", reason);
        }
        Ok(())
    }

    fn validate_cluster(&self) -> Result<(), InvalidOption> {
        if self.node_id == 0 {
            return refuse("node-id", "is 0; nodes are numbered from 1 on");
        }
        let founders = self.founders()?;
        if let Some(address) = &self.advertise {
            check_address("advertise", address)?;
        }
        if !founders.is_empty() {
            let mine = founders.get(&self.node_id);
            if mine.is_none() && self.join.is_empty() {
                let reason = format!(
                    "lacks this node: node-id is {}; list it, or give it `join`, too, if it is to be \
                     added to the cluster that these found",
                    self.node_id
                );
                return refuse("peers", reason);
            }
            if let (Some(mine), Some(advertise)) = (mine, &self.advertise)
                && mine != advertise
            {
                let reason = format!("differs from {mine}, which `peers` says of this node");
                return refuse("advertise", reason);
            }
            if !FOUNDERS.contains(&founders.len()) {
                let reason = format!(
                    "names {} nodes; use 1, 3 or 5: an even number survives no more deaths than one \
                     less",
                    founders.len()
                );
                return refuse("peers", reason);
            }
        }
        if self.join.len() > JOIN_MAX {
            return refuse("join", format!("names more than {JOIN_MAX} nodes"));
        }
        self.join.iter().try_for_each(|address| check_address("join", address))?;
        if self.endpoint_file.as_ref().is_some_and(|path| path.file_name().is_none()) {
            return refuse("endpoint-file", "is no path of a file");
        }
        let alone = founders.len() <= 1 && self.join.is_empty() && self.endpoint_file.is_none();
        let is_listed = founders.contains_key(&self.node_id);
        if !alone && self.advertise.is_none() && !is_listed && self.listens_everywhere() {
            let reason = format!(
                "is needed, as others cannot reach {}; name the HOST:PORT that they use",
                self.listen
            );
            return refuse("advertise", reason);
        }
        Ok(())
    }

    /// Returns the nodes that found the cluster together, by number.
    ///
    /// # Errors  `peers` has an invalid format.
    pub(crate) fn founders(&self) -> Result<BTreeMap<u64, String>, InvalidOption> {
        let mut founders = BTreeMap::new();
        for peer in &self.peers {
            let refuse = |reason| InvalidOption { option: "peers", reason };
            let shown: String = peer.chars().take(100).collect();
            let parsed = peer.split_once('=').and_then(|(number, address)| {
                let number = number.parse::<u64>().ok().filter(|number| *number > 0)?;
                Some((number, address.to_owned()))
            });
            let (number, address) =
                parsed.ok_or_else(|| refuse(format!("holds `{shown}`; write NUMBER=HOST:PORT")))?;
            check_address("peers", &address)?;
            if founders.values().any(|known| *known == address) {
                return Err(refuse(format!("names {address} twice")));
            }
            if founders.insert(number, address).is_some() {
                return Err(refuse(format!("names node {number} twice")));
            }
        }
        Ok(founders)
    }

    /// True if it listens on all addresses, so that `listen` does not say where to reach it.
    pub(crate) fn listens_everywhere(&self) -> bool {
        self.listen.ip().is_unspecified()
    }
}

fn refuse(option: &'static str, reason: impl Into<String>) -> Result<(), InvalidOption> {
    Err(InvalidOption { option, reason: reason.into() })
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

const FOUNDERS: [usize; 3] = [1, 3, 5];

/// Maximum nodes in `join`; more are never needed.
const JOIN_MAX: usize = 16;

/// Maximum election timeout, ms: a failover must not take longer.
const ELECTION_MS_MAX: u64 = 60_000;

/// Maximum length of an address: a DNS name with a port.
const ADDRESS_BYTES_MAX: usize = 260;

/// Rejects text that is not HOST:PORT.
pub(crate) fn check_address(option: &'static str, address: &str) -> Result<(), InvalidOption> {
    let fine = |(host, port): (&str, &str)| {
        let name = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let host = !host.is_empty() && host.chars().all(name);
        // More than one colon is an IPv6 address, which needs brackets.
        let brackets = !host || address.matches(':').nth(1).is_none() || address.contains("]:");
        host && brackets && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match address.len() <= ADDRESS_BYTES_MAX && address.rsplit_once(':').is_some_and(fine) {
        true => Ok(()),
        false => {
            let shown: String = address.chars().take(100).collect();
            refuse(option, format!("holds `{shown}`; write HOST:PORT, with a port from 1 to 65535"))
        }
    }
}

/// Maximum length of the name, which the log's header holds.
const CLUSTER_NAME_BYTES_MAX: usize = 255;

/// Minimum ttl: below it, scheduling delays of a loaded machine end sessions.
const SESSION_TTL_MS_MIN: u64 = 100;

/// Maximum ttl: a dead worker's scans must not wait longer.
const SESSION_TTL_MS_MAX: u64 = 600_000;

/// Minimum bound: the largest chunk must fit.
const UNREFERENCED_BYTES_MIN: u64 = shardfeed_proto::CHUNK_BYTES_MAX as u64;

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn defaults_are_valid_and_only_the_folder_is_needed() {
        let options: CoordinatorOptions = serde_json::from_str(r#"{"data-dir":"/d"}"#).unwrap();
        assert_eq!(options, CoordinatorOptions::new("/d"));
        assert_eq!(options.validate(), Ok(()));
        let error = serde_json::from_str::<CoordinatorOptions>(r#"{"data-dir":"/d","ttl":1}"#);
        assert!(error.unwrap_err().to_string().contains("unknown field `ttl`"));
    }

    #[test]
    fn contradictions_are_named() {
        let refused = |change: fn(&mut CoordinatorOptions)| {
            let mut options = CoordinatorOptions::new("/d");
            change(&mut options);
            options.validate().unwrap_err().to_string()
        };
        let error = refused(|options| options.heartbeat_ms = 3_334);
        assert!(error.contains("use 1 to 3333"), "{error}");
        assert!(refused(|options| options.session_ttl_ms = 99).contains("session-ttl-ms"));
        assert!(refused(|options| options.data_dir = PathBuf::new()).contains("data-dir"));
        assert!(refused(|options| options.cluster_name.clear()).contains("cluster-name"));
        assert!(refused(|options| options.http = Some(options.listen)).contains("two ports"));
        assert!(refused(|options| options.unreferenced_bytes_max = 1).contains("unreferenced"));
    }

    #[test]
    fn every_refusal_says_which_option_and_what_to_do() {
        let changes: [fn(&mut CoordinatorOptions); 22] = [
            |options| options.data_dir = PathBuf::new(),
            |options| options.peers = vec!["a:1".into()],
            |options| options.peers = vec!["1=a:1".into(), "1=b:1".into(), "3=c:1".into()],
            |options| options.peers = vec!["1=a:1".into(), "2=a:1".into(), "3=c:1".into()],
            |options| options.cluster_name.clear(),
            |options| options.session_ttl_ms = 99,
            |options| options.heartbeat_ms = 3_334,
            |options| options.snapshot_every = 0,
            |options| options.unreferenced_bytes_max = 1,
            |options| options.http = Some(options.listen),
            |options| (options.tls, options.insecure) = (Some("/tls".into()), true),
            |options| options.listen = "10.0.0.7:7070".parse().unwrap(),
            |options| options.peer_heartbeat_ms = 0,
            |options| options.election_max_ms = options.election_min_ms,
            |options| options.node_id = 0,
            |options| options.advertise = Some("here".into()),
            |options| options.peers = vec!["2=a:1".into()],
            |options| options.peers = vec!["1=a:1".into(), "2=b:1".into()],
            |options| {
                (options.peers, options.advertise) = (vec!["1=a:1".into()], Some("b:1".into()));
            },
            |options| options.join = vec!["a:1".into(); JOIN_MAX + 1],
            |options| options.endpoint_file = Some("/".into()),
            |options| {
                options.join = vec!["a:1".into()];
                (options.listen, options.insecure) = ("0.0.0.0:7070".parse().unwrap(), true);
            },
        ];
        let said = changes.map(|change| {
            let mut options = CoordinatorOptions::new("/d");
            change(&mut options);
            format!("{}\n", options.validate().unwrap_err())
        });
        expect![[r#"
            option `data-dir`: is empty; name a folder on a disk that stays
            option `peers`: holds `a:1`; write NUMBER=HOST:PORT
            option `peers`: names node 1 twice
            option `peers`: names a:1 twice
            option `cluster-name`: has 1 to 255 bytes
            option `session-ttl-ms`: is 99; sessions live 100 to 600000 ms
            option `heartbeat-ms`: is 3334, but two may be lost within session-ttl-ms=10000; use 1 to 3333
            option `snapshot-every`: is 0; a log without snapshots grows for ever
            option `unreferenced-bytes-max`: is 1; a single chunk may have 1048576
            option `http`: is 127.0.0.1:7070, as `listen`; use two ports
            option `insecure`: contradicts `tls`; leave one of them out
            option `listen`: is 10.0.0.7:7070, where other hosts can call, but callers are not authenticated; set `tls` (`shardfeed tls init` makes certificates), or `insecure` if everybody on that network may do anything
            option `peer-heartbeat-ms`: is 0, but two must fit into election-min-ms=300; use 1 to 150
            option `election-max-ms`: is 300; use more than election-min-ms=300, better twice as much, and at most 60000
            option `node-id`: is 0; nodes are numbered from 1 on
            option `advertise`: holds `here`; write HOST:PORT, with a port from 1 to 65535
            option `peers`: lacks this node: node-id is 1; list it, or give it `join`, too, if it is to be added to the cluster that these found
            option `peers`: names 2 nodes; use 1, 3 or 5: an even number survives no more deaths than one less
            option `advertise`: differs from a:1, which `peers` says of this node
            option `join`: names more than 16 nodes
            option `endpoint-file`: is no path of a file
            option `advertise`: is needed, as others cannot reach 0.0.0.0:7070; name the HOST:PORT that they use
        "#]].assert_eq(&said.concat());
    }

    #[test]
    fn other_hosts_may_call_only_with_certificates_or_if_it_is_wanted() {
        let open = |change: fn(&mut CoordinatorOptions)| {
            let mut options = CoordinatorOptions::new("/d");
            change(&mut options);
            options.validate().map_err(|error| error.to_string())
        };
        for address in ["0.0.0.0:7070", "[::]:7070", "10.0.0.7:7070", "[::ffff:10.0.0.7]:7070"] {
            let listens = |option: &str| -> Result<(), String> {
                let mut options = CoordinatorOptions::new("/d");
                match option {
                    "listen" => options.listen = address.parse().unwrap(),
                    _ => options.http = Some(address.parse().unwrap()),
                }
                options.validate().map_err(|error| error.to_string())
            };
            for option in ["listen", "http"] {
                let error = listens(option).unwrap_err();
                assert!(error.contains(&format!("`{option}`: is {address}")), "{error}");
                assert!(error.contains("set `tls`") && error.contains("`insecure`"), "{error}");
            }
        }
        open(|options| options.listen = "127.0.0.9:7070".parse().unwrap()).unwrap();
        open(|options| options.listen = "[::ffff:127.0.0.1]:7070".parse().unwrap()).unwrap();
        open(|options| {
            options.listen = "0.0.0.0:7070".parse().unwrap();
            options.tls = Some("/tls".into());
        })
        .unwrap();
        open(|options| {
            options.listen = "0.0.0.0:7070".parse().unwrap();
            options.insecure = true;
        })
        .unwrap();
        let both = open(|options| {
            options.tls = Some("/tls".into());
            options.insecure = true;
        });
        assert!(both.unwrap_err().contains("leave one of them out"));
    }

    #[test]
    fn the_cluster_is_named_by_numbers_and_addresses() {
        let with = |peers: &[&str], change: fn(&mut CoordinatorOptions)| {
            let peers = peers.iter().map(|&peer| peer.to_owned()).collect();
            let mut options = CoordinatorOptions { peers, ..CoordinatorOptions::new("/d") };
            change(&mut options);
            options.validate().map_err(|error| error.to_string())
        };
        let three = ["1=a:1", "2=b.example:70", "3=[::1]:7"];
        with(&three, |_| {}).unwrap();
        with(&three, |options| options.advertise = Some("a:1".into())).unwrap();
        for (peers, said) in [
            (&["1=a:1", "2=b:1"][..], "use 1, 3 or 5"),
            (&["1=a:1", "2=a:1", "3=c:1"], "a:1 twice"),
            (&["1=a:1", "1=b:1", "3=c:1"], "node 1 twice"),
            (&["2=a:1", "3=b:1", "4=c:1"], "lacks this node"),
            (&["1=a", "2=b:1", "3=c:1"], "HOST:PORT"),
            (&["1=a:0"], "1 to 65535"),
            (&["1=::1:7"], "HOST:PORT"),
            (&["a:1"], "NUMBER=HOST:PORT"),
            (&["0=a:1"], "NUMBER=HOST:PORT"),
        ] {
            let error = with(peers, |_| {}).unwrap_err();
            assert!(error.contains("`peers`") && error.contains(said), "{error}");
        }
        let refused = |change| with(&three, change).unwrap_err();
        assert!(refused(|options| options.advertise = Some("z:1".into())).contains("differs"));
        assert!(refused(|options| options.node_id = 4).contains("lacks this node"));
        let joining = |node_id: u64| {
            let options = CoordinatorOptions { node_id, ..CoordinatorOptions::new("/d") };
            let peers = three.iter().map(|&peer| peer.to_owned()).collect();
            CoordinatorOptions { peers, join: vec!["a:1".into()], ..options }.validate()
        };
        assert_eq!((joining(1), joining(4)), (Ok(()), Ok(())), "the same list on all nodes");
        assert!(refused(|options| options.election_max_ms = 300).contains("election-max-ms"));
        assert!(refused(|options| options.peer_heartbeat_ms = 151).contains("1 to 150"));
        let everywhere = |options: &mut CoordinatorOptions| {
            options.listen = "0.0.0.0:7070".parse().unwrap();
            options.insecure = true;
            options.join = vec!["a:1".into()];
        };
        assert!(with(&[], everywhere).unwrap_err().contains("`advertise`"));
    }
}
