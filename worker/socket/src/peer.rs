//! Identity of the process at the other end, and the permission to connect.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::process::geteuid;

const ROOT: u32 = 0;

/// The process that connected or listens, as of that time, reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id; `None` if the process is in a container whose processes this one cannot see.
    pub pid: Option<u32>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id; supplementary groups are not reported.
    pub gid: u32,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket.as_fd(), PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0);
        Ok(Self { pid, uid: credentials.uid(), gid: credentials.gid() })
    }

    pub(crate) fn is_us_or_root(&self) -> bool {
        self.uid == ROOT || self.uid == geteuid().as_raw()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => write!(f, "a process of another container")?,
        }
        write!(f, " (uid {}, gid {})", self.uid, self.gid)
    }
}

/// Trainers that a worker serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allow {
    /// All that the socket file's mode lets connect: its owner, its group, and root.
    #[default]
    FileMode,
    /// Only the worker's own user, root, and the users and groups listed here.
    Only {
        uids: Vec<u32>,
        /// Group ids, compared with the effective one.
        gids: Vec<u32>,
    },
}

impl Allow {
    pub fn admits(&self, peer: &Peer) -> bool {
        match self {
            Self::FileMode => true,
            Self::Only { uids, gids } => {
                peer.is_us_or_root() || uids.contains(&peer.uid) || gids.contains(&peer.gid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_admits_itself_root_and_us() {
        let peer = |uid, gid| Peer { pid: Some(1), uid, gid };
        let allow = Allow::Only { uids: vec![77_001], gids: vec![77_100] };
        for admitted in [
            peer(ROOT, 1),
            peer(geteuid().as_raw(), 77_002),
            peer(77_001, 77_002),
            peer(77_002, 77_100),
        ] {
            assert!(allow.admits(&admitted), "{admitted}");
        }
        assert!(!allow.admits(&peer(77_100, 77_001)));
        assert!(Allow::FileMode.admits(&peer(77_100, 77_001)));
    }

    #[test]
    fn peers_are_told_apart_in_words() {
        let peer = Peer { pid: Some(7), uid: 1, gid: 2 };
        assert_eq!(peer.to_string(), "pid 7 (uid 1, gid 2)");
        let peer = Peer { pid: None, ..peer };
        assert_eq!(peer.to_string(), "a process of another container (uid 1, gid 2)");
    }
}
