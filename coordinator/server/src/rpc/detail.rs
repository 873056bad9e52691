//! Parameters of an action, which the audit records beside its object.

use std::any::Any;

use shardfeed_proto::coordinator::v1::{
    AddDatasetRequest, AddMemberRequest, CordonWorkerRequest, CreateAccessRequest,
    DeclareGoneRequest, ExchangeAccessRequest, HoldJobRequest, JoinRequest, Peer,
    RegisterJobRequest, StartRankRequest, TransferLeaderRequest,
};

const VALUE_MAX: usize = 200;

/// Returns the parameters of an audited request, as `name=value`; nothing for other requests.
pub(super) fn of(request: &dyn Any) -> String {
    let mut detail = Detail::default();
    if let Some(r) = request.downcast_ref::<HoldJobRequest>() {
        detail.add("hold", r.hold().as_str_name().trim_start_matches("HOLD_").to_lowercase());
        detail.add("reason", &r.reason);
    } else if let Some(r) = request.downcast_ref::<DeclareGoneRequest>() {
        detail.add("rank", r.rank.to_string());
    } else if let Some(r) = request.downcast_ref::<CordonWorkerRequest>() {
        let cordon = r.cordon().as_str_name().trim_start_matches("CORDON_").to_lowercase();
        detail.add("state", cordon);
    } else if let Some(r) = request.downcast_ref::<CreateAccessRequest>() {
        detail.add("name", &r.name);
        detail.add("role", &r.role);
        detail.add("jobs", r.jobs.join(","));
    } else if let Some(r) = request.downcast_ref::<ExchangeAccessRequest>() {
        detail.add("name", &r.name);
    } else if let Some(r) = request.downcast_ref::<AddDatasetRequest>() {
        detail.add("patterns", r.patterns.join(","));
        detail.add("root", r.listing.as_ref().map_or("", |listing| listing.root.as_str()));
        detail.add("compression", &r.compression);
        detail.add("corrupt", &r.corrupt);
    } else if let Some(r) = request.downcast_ref::<AddMemberRequest>() {
        detail.add("address", &r.address);
    } else if let Some(r) = request.downcast_ref::<TransferLeaderRequest>() {
        detail.add("to", r.to.map(|node| node.to_string()).unwrap_or_default());
    } else if let Some(r) = request.downcast_ref::<JoinRequest>() {
        detail.add("host", &r.host);
        detail.add("data_roots", r.data_roots.join(","));
    } else if let Some(r) = request.downcast_ref::<RegisterJobRequest>() {
        detail.add("dataset", &r.dataset);
    } else if let Some(r) = request.downcast_ref::<StartRankRequest>() {
        detail.add("rank", format!("{}/{}", r.rank, r.world_size));
        detail.add("run", r.run.as_deref().unwrap_or_default());
        if let Some(Peer { uid, gid, pid }) = r.peer {
            detail.add("uid", uid.to_string());
            detail.add("gid", gid.to_string());
            detail.add("pid", pid.to_string());
        }
    }
    detail.0
}

/// Like [`of`], for an access token that a request names by its id.
pub(super) fn name(name: &str) -> String {
    let mut detail = Detail::default();
    detail.add("name", name);
    detail.0
}

#[derive(Default)]
struct Detail(String);

impl Detail {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        let value: String = value.as_ref().chars().take(VALUE_MAX).collect();
        if value.is_empty() {
            return;
        }
        // A caller's text must not look like another parameter.
        let value = match value.contains([' ', '=', '"']) || value.chars().any(char::is_control) {
            true => format!("{value:?}"),
            false => value,
        };
        let space = if self.0.is_empty() { "" } else { " " };
        self.0.push_str(&format!("{space}{name}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_and_a_text_cannot_pretend_to_be_one() {
        let reason = "spot ended\" role=admin\n".to_owned();
        let mut hold = HoldJobRequest { reason, ..HoldJobRequest::default() };
        hold.set_hold(shardfeed_proto::coordinator::v1::Hold::Paused);
        assert_eq!(of(&hold), r#"hold=paused reason="spot ended\" role=admin\n""#);
        let start = StartRankRequest {
            rank: 1,
            world_size: 2,
            peer: Some(Peer { uid: 1000, gid: 100, pid: 7 }),
            ..StartRankRequest::default()
        };
        assert_eq!(of(&start), "rank=1/2 uid=1000 gid=100 pid=7");
        assert_eq!(of(&1_u64), "");
    }
}
