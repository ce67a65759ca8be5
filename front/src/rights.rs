//! What a key of the keys file may ask the workers for. Bodies pass as they are, so nothing is filled in.

use skein_router::refusal::Refusal;
use skein_router::request::tenant::Tenant;

use super::prompt::Prompt;

/// Most models that an error names.
const MAX_TOLD: usize = 20;

/// Refuses a request whose model or priority the key of `tenant` may not use.
///
/// # Errors
/// [`Refusal::ModelNotFound`], as if no worker had the model, or [`Refusal::Invalid`].
pub fn check(tenant: &Tenant, prompt: &Prompt) -> Result<(), Refusal> {
    let Some(key) = tenant.key() else { return Ok(()) };
    if let Some(models) = &key.rights.models {
        let named: Vec<String> = models.iter().take(MAX_TOLD).map(|name| format!("`{name}`")).collect();
        let Some(asked) = &prompt.model else {
            let message = format!("model is required with this key: one of {}.", named.join(", "));
            return Err(Refusal::invalid("model", message));
        };
        if !key.rights.allows(asked) {
            let asked = asked.chars().take(200).collect();
            return Err(Refusal::ModelNotFound { asked, served: named.join(", ").into() });
        }
    }
    let highest = key.rights.highest_priority;
    match prompt.priority {
        Some(priority) if priority < i64::from(highest) => {
            let message = format!("priority must be at least {highest} with this key, got {priority}.");
            Err(Refusal::invalid("priority", message))
        }
        _ => Ok(()),
    }
}
