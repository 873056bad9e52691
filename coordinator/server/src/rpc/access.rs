//! Calls about access tokens and the audit.

use std::sync::Arc;

use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::{
    CreateAccessRequest, CreateAccessResponse, ExchangeAccessRequest, ExchangeAccessResponse,
    ListAccessRequest, ListAccessResponse, ListAuditRequest, ListAuditResponse,
    RevokeAccessRequest, RevokeAccessResponse, WhoAmIRequest, WhoAmIResponse,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{
    AccessRole, AccessToken, Change, CreateAccess, ExchangeAccess, Unusable,
};

use super::audit::{AUDIT_FOLDER, ENTRIES_MAX};
use super::checks::digest;
use super::context::Caller;
use super::who::{self, denied};
use crate::leader::core::{Core, blocking};

pub(super) async fn who_am_i(
    _core: Arc<Core>,
    caller: Caller,
    _request: WhoAmIRequest,
) -> Result<WhoAmIResponse, WireError> {
    let told = who::told(&caller.who);
    Ok(WhoAmIResponse { principal: caller.principal, ..told })
}

pub(super) async fn create_access(
    core: Arc<Core>,
    caller: Caller,
    request: CreateAccessRequest,
) -> Result<CreateAccessResponse, WireError> {
    let CreateAccessRequest { id, digest: bytes, name, role, jobs, ttl_ms, join_ttl_ms, .. } =
        request;
    let digest = digest("digest", &bytes)?;
    check_id(&id)?;
    let role = role_of(&role)?;
    let create = CreateAccess { id, digest, name, role, jobs, ttl_ms, join_ttl_ms };
    core.propose(caller, Change::CreateAccess(create)).await?;
    Ok(CreateAccessResponse {})
}

pub(super) async fn revoke_access(
    core: Arc<Core>,
    caller: Caller,
    request: RevokeAccessRequest,
) -> Result<RevokeAccessResponse, WireError> {
    core.propose(caller, Change::RevokeAccess { id: request.id }).await?;
    Ok(RevokeAccessResponse {})
}

pub(super) async fn list_access(
    core: Arc<Core>,
    _caller: Caller,
    _request: ListAccessRequest,
) -> Result<ListAccessResponse, WireError> {
    let tokens = core.read(|state| state.access_tokens().map(token).collect());
    Ok(ListAccessResponse { tokens })
}

pub(super) async fn exchange_access(
    core: Arc<Core>,
    caller: Caller,
    request: ExchangeAccessRequest,
) -> Result<ExchangeAccessResponse, WireError> {
    let ExchangeAccessRequest { id, digest: bytes, name, .. } = request;
    let digest = digest("digest", &bytes)?;
    check_id(&id)?;
    let (Some(join), Some(role)) = (caller.who.token.clone(), caller.who.role) else {
        return Err(denied("a join token is exchanged by showing it; give --token-file FILE"));
    };
    // A repeated exchange needs no entry in the log; a caller that missed the answer gets it again.
    let known = core.read(|state| {
        let token = state.access_token(&join)?;
        let again = token.was_exchanged_for(&id, state.access_token(&id), digest);
        let used = token.check_join(core.host.wall_ms()) == Err(Unusable::Used);
        used.then_some(again)
    });
    match known {
        Some(true) => return Ok(ExchangeAccessResponse { role: role.to_string() }),
        Some(false) => {
            let why = Unusable::Used;
            return Err(denied(format!(
                "access token `{join}` {why}; ask an admin for another one"
            )));
        }
        None => {}
    }
    let exchange = ExchangeAccess { join, id, digest, name };
    core.propose(caller, Change::ExchangeAccess(exchange)).await?;
    Ok(ExchangeAccessResponse { role: role.to_string() })
}

pub(super) async fn list_audit(
    core: Arc<Core>,
    _caller: Caller,
    request: ListAuditRequest,
) -> Result<ListAuditResponse, WireError> {
    if !(1..=ENTRIES_MAX).contains(&request.most) {
        let message = format!("`most` is {}; 1 to {ENTRIES_MAX} are allowed", request.most);
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    let here = Arc::clone(&core);
    let list = move || {
        here.audit.list(&request, here.options.node_id).map_err(|error| {
            let message = format!(
                "{}: cannot read the audit: {error}; check the disk of the coordinator",
                here.options.data_dir.join(AUDIT_FOLDER).display()
            );
            WireError::new(ErrorKind::Storage, message)
        })
    };
    blocking(&core, "reading the audit", list).await
}

/// Checks an id: tokens contain it between underscores.
fn check_id(id: &str) -> Result<(), WireError> {
    match (4..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        true => Ok(()),
        false => {
            let message = "`id` of a token has 4 to 32 letters and digits";
            Err(WireError::new(ErrorKind::Invalid, message))
        }
    }
}

fn role_of(name: &str) -> Result<AccessRole, WireError> {
    let roles = [
        AccessRole::Viewer,
        AccessRole::Operator,
        AccessRole::Admin,
        AccessRole::Worker,
        AccessRole::Trainer,
    ];
    roles.into_iter().find(|role| role.to_string() == name).ok_or_else(|| {
        let name: String = name.chars().take(100).collect();
        let message = format!("there are no access tokens of role `{name}`; there are of: viewer, operator, admin, worker, trainer");
        WireError::new(ErrorKind::Invalid, message)
    })
}

fn token(token: &AccessToken) -> wire::AccessToken {
    let AccessToken {
        id,
        name,
        role,
        jobs,
        created_ms,
        created_by,
        expires_ms,
        revoked_ms,
        join,
        ..
    } = token.clone();
    wire::AccessToken {
        id,
        name,
        role: role.to_string(),
        jobs,
        created_ms,
        created_by,
        expires_ms,
        revoked_ms,
        join: join.is_some(),
        used_for: join.and_then(|join| join.used_for),
    }
}
