//! Calls about access tokens and the audit.

use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError, digest_from};
use shardfeed_scheduler::{
    AccessRole, AccessToken, Change, CreateAccess, ExchangeAccess, Unusable,
};

use super::audit::{AUDIT_FOLDER, ENTRIES_MAX};
use super::serve::Call;
use super::who::{self, denied};
use crate::error::{Result, invalid};
use crate::leader::core::{Core, blocking};

pub(super) async fn who_am_i(call: Call<wire::WhoAmIRequest>) -> Result<wire::WhoAmIResponse> {
    let told = who::told(&call.caller.who);
    Ok(wire::WhoAmIResponse { principal: call.caller.principal, ..told })
}

pub(super) async fn create_access(
    call: Call<wire::CreateAccessRequest>,
) -> Result<wire::CreateAccessResponse> {
    let Call { core, caller, request } = call;
    let wire::CreateAccessRequest {
        id, digest: bytes, name, role, jobs, ttl_ms, join_ttl_ms, ..
    } = request;
    let digest = digest_from("digest", &bytes)?;
    check_id(&id)?;
    let role = role_of(&role)?;
    let create = CreateAccess { id, digest, name, role, jobs, ttl_ms, join_ttl_ms };
    core.propose(caller, Change::CreateAccess(create)).await?;
    Ok(wire::CreateAccessResponse {})
}

pub(super) async fn revoke_access(
    call: Call<wire::RevokeAccessRequest>,
) -> Result<wire::RevokeAccessResponse> {
    call.core.propose(call.caller, Change::RevokeAccess { id: call.request.id }).await?;
    Ok(wire::RevokeAccessResponse {})
}

pub(super) async fn list_access(
    call: Call<wire::ListAccessRequest>,
) -> Result<wire::ListAccessResponse> {
    let tokens = call.core.read(|state| state.access_tokens().map(token).collect());
    Ok(wire::ListAccessResponse { tokens })
}

pub(super) async fn exchange_access(
    call: Call<wire::ExchangeAccessRequest>,
) -> Result<wire::ExchangeAccessResponse> {
    let Call { core, caller, request } = call;
    let wire::ExchangeAccessRequest { id, digest: bytes, name, .. } = request;
    let digest = digest_from("digest", &bytes)?;
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
        Some(true) => {}
        Some(false) => {
            let why = Unusable::Used;
            let message = format!("access token `{join}` {why}; ask an admin for another one");
            return Err(denied(message));
        }
        None => {
            let exchange = ExchangeAccess { join, id, digest, name };
            core.propose(caller, Change::ExchangeAccess(exchange)).await?;
        }
    }
    Ok(wire::ExchangeAccessResponse { role: role.to_string() })
}

pub(super) async fn list_audit(
    call: Call<wire::ListAuditRequest>,
) -> Result<wire::ListAuditResponse> {
    let Call { core, request, .. } = call;
    if !(1..=ENTRIES_MAX).contains(&request.most) {
        return Err(invalid(format!("`most` is {}; 1 to {ENTRIES_MAX} are allowed", request.most)));
    }
    let list = move |core: &Core| {
        core.audit.list(&request, core.options.node_id).map_err(|error| {
            let message = format!(
                "{}: cannot read the audit: {error}; check the disk of the coordinator",
                core.options.data_dir.join(AUDIT_FOLDER).display()
            );
            WireError::new(ErrorKind::Storage, message)
        })
    };
    blocking(&core, "reading the audit", list).await
}

/// Checks an id: tokens contain it between underscores.
fn check_id(id: &str) -> Result<()> {
    match (4..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        true => Ok(()),
        false => Err(invalid("`id` of a token has 4 to 32 letters and digits")),
    }
}

fn role_of(name: &str) -> Result<AccessRole> {
    let mut roles = AccessRole::ALL.into_iter();
    roles.find(|role| role.to_string() == name).ok_or_else(|| {
        let name: String = name.chars().take(100).collect();
        let roles = AccessRole::ALL.map(|role| role.to_string()).join(", ");
        invalid(format!("there are no access tokens of role `{name}`; there are of: {roles}"))
    })
}

fn token(token: &AccessToken) -> wire::AccessToken {
    wire::AccessToken {
        id: token.id.clone(),
        name: token.name.clone(),
        role: token.role.to_string(),
        jobs: token.jobs.clone(),
        created_ms: token.created_ms,
        created_by: token.created_by.clone(),
        expires_ms: token.expires_ms,
        revoked_ms: token.revoked_ms,
        join: token.join.is_some(),
        used_for: token.join.as_ref().and_then(|join| join.used_for.clone()),
    }
}
