//! Whose something is that was stored under a name.

use super::Rights;
use crate::config::RouterConfig;
use crate::request::tenant::Tenant;

/// The tenant of `config` that `is_owner` recognises by its name, with `rights`, those of the key that a
/// request came with; `None` if its key or its tenant is gone.
pub fn tenant_of(
    config: &RouterConfig,
    is_owner: impl Fn(&str) -> bool,
    rights: Option<&Rights>,
) -> Option<Tenant> {
    let of_flag = config.api_keys.iter().chain(&config.admin_api_key).map(|key| Tenant::of_key(key));
    let of_flag = of_flag.into_iter().find(|tenant| is_owner(tenant.name()));
    let of_file = || {
        let file = config.keys_file.as_ref()?;
        let owns = |tenant: &str| is_owner(&Tenant::name_in_file(tenant));
        file.key_for_batch(owns, rights).map(Tenant::of_entry)
    };
    of_flag.or_else(of_file)
}
