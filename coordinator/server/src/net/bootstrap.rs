//! Startup of a node in its cluster: data on its disk takes precedence. An empty node queries the
//! others first, so that a node that lost its disk never founds a second cluster, nor votes again
//! under a number whose promises were lost with the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use shardfeed_host::{Disk, blocking};
use shardfeed_proto::PEER_PROTOCOL;
use shardfeed_proto::coordinator::v1::IntroduceResponse;
use shardfeed_raft::Start;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::error::{StartError, StartResult};
use crate::leader::core::Core;
use crate::net::front::Front;

const ASK_EVERY: Duration = Duration::from_millis(250);

const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Interval between log messages about the wait.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Answers of one round: the address, and the answer or the error.
type Answers = Vec<(String, Result<IntroduceResponse, String>)>;

/// Decides the role of the log's folder, new or existing; waits for the others if necessary.
///
/// A founder with `join` also looks for an existing cluster, and founds one only when every listed
/// node has reported that there is none.
///
/// # Errors  `LostDisk`, `NotAFounder`, `OtherCluster`, and errors of the folder.
pub(crate) async fn decide(front: &Front, disk: &Arc<dyn Disk>) -> StartResult<Start> {
    let founders = front.options.founders()?;
    let (joins, founds) =
        (!front.options.join.is_empty(), founders.contains_key(&front.options.node_id));
    let found = match founders.len() {
        0 | 1 => Start::Alone,
        _ => Start::Found { members: founders.clone() },
    };
    let look = Arc::clone(disk);
    let known =
        blocking(front.host.as_ref(), move || shardfeed_raft::identity(look.as_ref())).await;
    let died = |source| StartError::DataDir {
        path: front.options.data_dir.clone(),
        action: "look at the log",
        source,
    };
    if let Some(known) = known.map_err(died)?? {
        // A founder may have stopped before the cluster was founded: it continues with that.
        return Ok(match joins && !(founds && known.is_founder) {
            true => Start::Join { cluster: known.cluster },
            false => found,
        });
    }
    if joins && !founds {
        return ask_to_join(front, &founders).await.map(|cluster| Start::Join { cluster });
    }
    if joins || founders.len() > 1 {
        let there = agree_to_found(front, &founders).await?;
        return Ok(there.map_or(found, |cluster| Start::Join { cluster }));
    }
    Ok(found)
}

/// Waits until the node is a member of its cluster.
///
/// # Errors  As [`decide`].
pub(crate) async fn arrive(front: &Front, core: &Core, start: &Start) -> StartResult<()> {
    let founders = front.options.founders()?;
    let mut telling = Telling::new(front);
    while !core.node.members().iter().any(|member| member.node == front.options.node_id) {
        let what = match matches!(start, Start::Join { .. }) {
            true => format!(
                "waits to be added to cluster {}: run `shardfeed cluster add {} {}` there",
                core.node.cluster_id(),
                front.options.node_id,
                front.advertise
            ),
            false => {
                let answers = ask(front, others(front, &founders)).await;
                let missing = answers.iter().filter_map(|(address, answer)| match answer {
                    Ok(answer) if answer.cluster_id.is_empty() => {
                        Some(format!("{address} (is not ready yet)"))
                    }
                    Ok(_) => None,
                    Err(reason) => Some(format!("{address} ({reason})")),
                });
                let missing: Vec<_> = missing.collect();
                match missing.is_empty() {
                    true => "waits for its cluster to be founded".to_owned(),
                    false => waits_for(&missing),
                }
            }
        };
        telling.say(what);
        sleep(ASK_EVERY).await;
    }
    front.wait_for(None);
    Ok(())
}

/// Waits until every other founder, and every other listed node, has reported no history.
/// - Returns the cluster of a node that has one, if this node may join it.
async fn agree_to_found(
    front: &Front,
    founders: &BTreeMap<u64, String>,
) -> StartResult<Option<Uuid>> {
    let mut telling = Telling::new(front);
    loop {
        let answers = ask(front, listed(front, founders)).await;
        let mut missing = Vec::new();
        for (address, answer) in answers {
            match answer {
                Err(reason) => missing.push(format!("{address} ({reason})")),
                Ok(answer) => {
                    check_answer(front, &address, &answer)?;
                    let there =
                        answer.cluster_id.parse().ok().filter(|_| !answer.members.is_empty());
                    if there.is_some() && !front.options.join.is_empty() {
                        return Ok(there);
                    }
                    let expected = founders.iter().find(|(_, known)| **known == address);
                    if expected.is_some_and(|(node, _)| *node != answer.node) {
                        missing.push(format!("{address} (is node {})", answer.node));
                    } else if !answer.members.is_empty() {
                        // It has a history without this node: an operator must add this node.
                        return Err(StartError::NotAFounder {
                            node: front.options.node_id,
                            address,
                            cluster: answer.cluster_id,
                        });
                    }
                }
            }
        }
        if missing.is_empty() {
            front.wait_for(Some("it opens its log".to_owned()));
            return Ok(None);
        }
        telling.say(waits_for(&missing));
        sleep(ASK_EVERY).await;
    }
}

async fn ask_to_join(front: &Front, founders: &BTreeMap<u64, String>) -> StartResult<Uuid> {
    let mut telling = Telling::new(front);
    loop {
        let answers = ask(front, listed(front, founders)).await;
        let mut silent = Vec::new();
        for (address, answer) in answers {
            match answer {
                Err(reason) => silent.push(format!("{address} ({reason})")),
                Ok(answer) => {
                    check_answer(front, &address, &answer)?;
                    if let Ok(cluster) = answer.cluster_id.parse() {
                        return Ok(cluster);
                    }
                    silent.push(format!("{address} (has no cluster yet)"));
                }
            }
        }
        telling.say(format!("waits for a node of the cluster to join: {}", silent.join(", ")));
        sleep(ASK_EVERY).await;
    }
}

/// Rejects an answer that an operator must resolve.
fn check_answer(front: &Front, address: &str, answer: &IntroduceResponse) -> StartResult<()> {
    let node = front.options.node_id;
    let cluster = answer.cluster_id.clone();
    if answer.knows_you && answer.node != node {
        return Err(StartError::LostDisk { node, cluster });
    }
    if answer.cluster_name != front.options.cluster_name {
        return Err(StartError::OtherCluster {
            address: address.to_owned(),
            theirs: answer.cluster_name.chars().take(100).collect(),
            ours: front.options.cluster_name.clone(),
        });
    }
    Ok(())
}

fn others(front: &Front, founders: &BTreeMap<u64, String>) -> Vec<String> {
    let others = founders.iter().filter(|(node, _)| **node != front.options.node_id);
    others.map(|(_, address)| address.clone()).collect()
}

fn listed(front: &Front, founders: &BTreeMap<u64, String>) -> Vec<String> {
    let mut listed = others(front, founders);
    for address in &front.options.join {
        if *address != front.advertise && !listed.contains(address) {
            listed.push(address.clone());
        }
    }
    listed
}

fn waits_for(missing: &[String]) -> String {
    format!("waits for all of its peers to found a cluster; missing: {}", missing.join(", "))
}

async fn ask(front: &Front, addresses: Vec<String>) -> Answers {
    let ask = |address: String| async move {
        let answer = front.links.introduce(&address, front.introduction(), ANSWER_MAX).await;
        let answer = match answer {
            Ok(answer) if answer.protocol != PEER_PROTOCOL => {
                Err(format!("speaks version {} of the peers' protocol", answer.protocol))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(error.message),
        };
        (address, answer)
    };
    join_all(addresses.into_iter().map(ask)).await
}

/// Reports the wait: to /readyz at once, to the log every `TELL_EVERY`.
#[derive(Debug)]
struct Telling<'a> {
    front: &'a Front,
    told: Option<Instant>,
}

impl<'a> Telling<'a> {
    fn new(front: &'a Front) -> Self {
        Self { front, told: None }
    }

    fn say(&mut self, what: String) {
        let now = self.front.host.now();
        if self.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY) {
            self.told = Some(now);
            tracing::warn!(node = self.front.options.node_id, what, "the coordinator waits");
        }
        self.front.wait_for(Some(what));
    }
}
