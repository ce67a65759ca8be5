//! Requests and the model that serves them: of a server with one model always that one, of a server with
//! several the one that they name, which stays in memory until their answer has ended.

use std::ops::Deref;
use std::time::Duration;

use skein_node::clock;

use super::leases::{Lease, Repository};
use crate::app::App;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// What a server serves.
#[derive(Clone)]
pub enum Served {
    /// One model.
    One(App),
    /// Several, by their names.
    Several(Repository),
}

/// A model that stays in memory while this lives.
pub struct Held {
    /// What the wait for the model left of the request's timeout.
    pub time_left: Option<Duration>,
    app: App,
    _lease: Option<Lease>,
}

impl Deref for Held {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl Served {
    /// The model for a request that names `model`. Of several, one that is not in memory is waited for, at
    /// most `timeout`.
    ///
    /// # Errors
    /// Without a name if there are several, for a name that the tenant may not use, and those of
    /// [`Repository::lease`]. The name of a single model is not checked here.
    pub async fn held(
        &self,
        model: Option<&str>,
        tenant: &Tenant,
        timeout: Option<Duration>,
    ) -> Result<Held, Refusal> {
        match self {
            Self::One(app) => Ok(Held { time_left: timeout, app: app.clone(), _lease: None }),
            Self::Several(models) => {
                let arrived = clock::now();
                let lease = models.named(model, tenant, timeout).await?;
                let time_left = timeout.map(|timeout| timeout.saturating_sub(clock::now().since(arrived)));
                Ok(Held { time_left, app: lease.model().app.clone(), _lease: Some(lease) })
            }
        }
    }

    /// Loads the model `name` for an administrator, as `asked` says. A single model is always in memory.
    ///
    /// # Errors
    /// That of `asked`, for an unknown name, and those of [`Repository::lease`].
    pub async fn load(&self, asked: Result<(), Refusal>, name: &str, tenant: &Tenant) -> Result<(), Refusal> {
        asked?;
        match self {
            Self::One(app) => app.check_model(Some(name), tenant).map(drop),
            Self::Several(models) => models.load(models.find(name, tenant)?).await,
        }
    }

    /// Has the model `name` leave memory for an administrator, as `asked` says.
    ///
    /// # Errors
    /// That of `asked`, for an unknown name or a single model, and those of [`Repository::unload`].
    pub async fn unload(
        &self,
        asked: Result<(), Refusal>,
        name: &str,
        tenant: &Tenant,
    ) -> Result<(), Refusal> {
        asked?;
        match self {
            Self::One(app) => {
                app.check_model(Some(name), tenant)?;
                let message =
                    "This server has one model, which is always in memory; end the server to end it.";
                Err(Refusal::Conflict(message.to_owned()))
            }
            Self::Several(models) => models.unload(models.find(name, tenant)?).await,
        }
    }

    /// Settings of the server.
    pub fn config(&self) -> &RouterConfig {
        match self {
            Self::One(app) => &app.config,
            Self::Several(models) => models.config(),
        }
    }

    /// Fails if a request would be refused now.
    pub fn ready(&self) -> Result<(), Refusal> {
        match self {
            Self::One(app) => app.ready(),
            Self::Several(models) => models.ready(),
        }
    }
}
