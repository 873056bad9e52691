//! Commands of operators and admins.

use shardfeed_plan::Digest;
use shardfeed_scheduler::{AccessRole, Change, Cordon, CreateAccess, ExchangeAccess, Hold, covers};

use super::args::{Args, Failed};
use super::{Output, Script};

impl Script {
    pub(super) fn dispatch_operator(&mut self, name: &str, args: &mut Args) -> Output {
        match name {
            "pause" => self.hold(args, Some(Hold::Paused)),
            "cancel" => self.hold(args, Some(Hold::Cancelled)),
            "resume" => self.hold(args, None),
            "cordon" => self.cordon(args, Cordon::Cordoned),
            "drain" => self.cordon(args, Cordon::Draining),
            "uncordon" => self.cordon(args, Cordon::Open),
            "create-token" => self.create_token(args),
            "revoke-token" => self.revoke_token(args),
            "exchange-token" => self.exchange_token(args),
            "use-token" => self.use_token(args),
            _ => Err(format!("there is no command {name}").into()),
        }
    }

    /// `pause JOB [reason=TEXT]`, `cancel JOB [reason=TEXT]`, `resume JOB`
    fn hold(&mut self, args: &mut Args, hold: Option<Hold>) -> Output {
        let name = args.word("a job")?.to_owned();
        let reason = args.or("reason", String::new())?;
        let done = self.apply(Change::HoldJob { name: name.clone(), hold, reason })?;
        let state = match hold {
            Some(Hold::Paused) => "paused",
            Some(Hold::Cancelled) => "cancelled",
            None => "not held",
        };
        done.say(format!("job {name} is {state}"))
    }

    /// `cordon WORKER`, `drain WORKER`, `uncordon WORKER`
    fn cordon(&mut self, args: &mut Args, state: Cordon) -> Output {
        let worker = args.word("a worker")?.to_owned();
        let done = self.apply(Change::CordonWorker { worker: worker.clone(), state })?;
        done.say(format!("worker {worker} is {state}"))
    }

    /// `create-token ID role=ROLE [name=ada] [jobs="NAME ..."] [ttl=MS] [join_ttl=MS]`
    fn create_token(&mut self, args: &mut Args) -> Output {
        let id = args.word("an id")?.to_owned();
        let create = CreateAccess {
            id: id.clone(),
            digest: secret(&id),
            name: args.or("name", "ada".to_owned())?,
            role: role(&args.or("role", "viewer".to_owned())?)?,
            jobs: args.list("jobs")?,
            ttl_ms: args.or("ttl", 1_000)?,
            join_ttl_ms: args.key("join_ttl")?,
        };
        self.apply(Change::CreateAccess(create))?.say(format!("access token {id} is stored"))
    }

    /// `revoke-token ID`
    fn revoke_token(&mut self, args: &mut Args) -> Output {
        let id = args.word("an id")?.to_owned();
        let done = self.apply(Change::RevokeAccess { id: id.clone() })?;
        done.say(format!("access token {id} is revoked"))
    }

    /// `exchange-token JOIN_ID NEW_ID [name=w1] [secret=TEXT]`
    fn exchange_token(&mut self, args: &mut Args) -> Output {
        let join = args.word("a join token")?.to_owned();
        let id = args.word("an id")?.to_owned();
        let name = args.or("name", "w1".to_owned())?;
        let digest = secret(&args.or("secret", id.clone())?);
        let said = format!("join token {join} was exchanged for {id}");
        self.apply(Change::ExchangeAccess(ExchangeAccess { join, id, digest, name }))?.say(said)
    }

    /// `use-token ID [job=NAME]`: the check of a caller that presents this token.
    fn use_token(&mut self, args: &mut Args) -> Output {
        let id = args.word("an id")?;
        let Some(token) = self.state.access_token(id) else {
            return Err(format!("access token {id} is unknown").into());
        };
        token.check(self.now_ms).map_err(|why| format!("access token {id} {why}"))?;
        let job: Option<String> = args.key("job")?;
        let covers = job.map(|job| match covers(&token.jobs, &job) {
            true => format!(", and covers job {job}"),
            false => format!(", and does not cover job {job}"),
        });
        let (role, name) = (token.role, &token.name);
        Ok(format!("access token {id} of {name} has role {role}{}", covers.unwrap_or_default()))
    }
}

fn secret(text: &str) -> Digest {
    Digest::of_parts([text.as_bytes()])
}

fn role(text: &str) -> Result<AccessRole, Failed> {
    Ok(match text {
        "viewer" => AccessRole::Viewer,
        "operator" => AccessRole::Operator,
        "admin" => AccessRole::Admin,
        "worker" => AccessRole::Worker,
        "trainer" => AccessRole::Trainer,
        other => return Err(format!("{other} is no role").into()),
    })
}
