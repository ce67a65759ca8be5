//! Reads the rotary embedding from a configuration: `rope_parameters` in version 5 of transformers,
//! `rope_theta`, `rope_scaling` and `partial_rotary_factor` in version 4.

use serde_json::{Map, Value};
use skein_kernels::cpu::rope::{RopeScaling, Rotation};

use super::LoadError;
use super::fields::Fields;

/// Kinds of scaling; `su` is an old name for `longrope`.
const KINDS: [&str; 7] = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su"];
/// Longest original training context, in tokens.
const MAX_CONTEXT: f64 = 1e9;

/// Defaults of a family for absent fields.
#[derive(Debug, Clone, Copy)]
pub struct RopeDefaults {
    /// Base of the frequencies.
    pub theta: f64,
    /// Fraction of a head that is rotated.
    pub partial: f64,
}

impl RopeDefaults {
    /// The defaults of most families.
    pub const USUAL: Self = Self { theta: 10_000.0, partial: 1.0 };
}

/// Rotation of heads of `head_dim` values, and the number of values rotated.
pub fn rope(
    fields: &Fields<'_>,
    head_dim: usize,
    defaults: RopeDefaults,
) -> Result<(Rotation, usize), LoadError> {
    let empty = Map::new();
    let scaling = match object(fields, "rope_parameters")? {
        Some(object) => Some(object),
        None => object(fields, "rope_scaling")?,
    };
    let scaling = Fields { file: fields.file, object: scaling.unwrap_or(&empty) };
    read(fields, &scaling, head_dim, defaults)
}

/// Object in `field`, if present.
pub fn object<'a>(
    fields: &Fields<'a>,
    field: &'static str,
) -> Result<Option<&'a Map<String, Value>>, LoadError> {
    match fields.object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(fields.wrong(field, "an object or null".into())),
    }
}

/// Like [`rope`], with the parameters in `scaling`.
pub fn read(
    fields: &Fields<'_>,
    scaling: &Fields<'_>,
    head_dim: usize,
    defaults: RopeDefaults,
) -> Result<(Rotation, usize), LoadError> {
    let inner = |field| if scaling.is_absent(field) { fields } else { scaling };
    let theta = inner("rope_theta").number("rope_theta", 1.0..=1e15, Some(defaults.theta))?;
    let partial = inner("partial_rotary_factor");
    let share = partial.number("partial_rotary_factor", 0.0..=1.0, Some(defaults.partial))?;
    let rotated = (head_dim as f64 * share) as usize;
    if rotated < 2 || !rotated.is_multiple_of(2) {
        let allowed = format!("a share of head_dim, {head_dim}, that is an even number of values from 2");
        return Err(partial.wrong("partial_rotary_factor", allowed));
    }
    let scaling = read_scaling(fields, scaling, rotated)?;
    Ok((Rotation::new(head_dim / 2, rotated, theta, &scaling), rotated))
}

fn read_scaling(fields: &Fields<'_>, scaling: &Fields<'_>, rotated: usize) -> Result<RopeScaling, LoadError> {
    let kind = if scaling.is_absent("rope_type") { "type" } else { "rope_type" };
    let factor = || scaling.number("factor", 1.0..=1e6, None);
    let kind = scaling.one_of(kind, &KINDS, Some("default"))?;
    match kind.as_str() {
        "linear" => Ok(RopeScaling::Linear(factor()?)),
        "llama3" => llama3(fields, scaling),
        // The first Phi-3 configurations say yarn but contain longrope's factors.
        "yarn" if scaling.is_absent("short_factor") => yarn(fields, scaling),
        "yarn" | "longrope" | "su" => long(fields, scaling, rotated),
        // `dynamic` changes no frequency up to max_position_embeddings, the longest sequence served.
        "dynamic" => factor().map(|_| RopeScaling::None),
        _ => Ok(RopeScaling::None),
    }
}

fn llama3(fields: &Fields<'_>, scaling: &Fields<'_>) -> Result<RopeScaling, LoadError> {
    let low_freq_factor = scaling.number("low_freq_factor", 1e-6..=1e6, None)?;
    let high_freq_factor = scaling.number("high_freq_factor", 1e-6..=1e6, None)?;
    if high_freq_factor <= low_freq_factor {
        let allowed = format!("more than low_freq_factor, {low_freq_factor}");
        return Err(scaling.wrong("high_freq_factor", allowed));
    }
    Ok(RopeScaling::Llama3 {
        factor: scaling.number("factor", 1.0..=1e6, None)?,
        low_freq_factor,
        high_freq_factor,
        original_context: original_context(fields, scaling)?,
    })
}

fn yarn(fields: &Fields<'_>, scaling: &Fields<'_>) -> Result<RopeScaling, LoadError> {
    let original_context = original_context(fields, scaling)?;
    let ratio = f64::from(fields.max_positions()?) / original_context;
    let factor = scaling.number("factor", 1.0..=1e6, Some(ratio.max(1.0)))?;
    let mscale = |field| scaling.number(field, 0.0..=1e3, Some(0.0));
    let (mscale, all_dim) = (mscale("mscale")?, mscale("mscale_all_dim")?);
    let amplitude = |scale: f64| 0.1 * scale * factor.ln() + 1.0;
    let amplitude =
        if mscale > 0.0 && all_dim > 0.0 { amplitude(mscale) / amplitude(all_dim) } else { amplitude(1.0) };
    let (beta_fast, beta_slow) = (
        scaling.number("beta_fast", 1e-3..=1e6, Some(32.0))?,
        scaling.number("beta_slow", 1e-3..=1e6, Some(1.0))?,
    );
    if beta_fast < beta_slow {
        return Err(scaling.wrong("beta_fast", format!("at least beta_slow, {beta_slow}")));
    }
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_context,
        truncate: scaling.flag("truncate", true)?,
        amplitude: scaling.number("attention_factor", 1e-3..=1e3, Some(amplitude))?,
    })
}

/// The factors depend on the longest sequence served, not on a request's: cached keys of short and long
/// requests must be the same.
fn long(fields: &Fields<'_>, scaling: &Fields<'_>, rotated: usize) -> Result<RopeScaling, LoadError> {
    let (original, longest) = (original_context(fields, scaling)?, f64::from(fields.max_positions()?));
    let factor = scaling.number("factor", 1e-3..=1e6, Some(longest / original))?;
    let amplitude = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
    let lists =
        [factors(scaling, "short_factor", rotated / 2)?, factors(scaling, "long_factor", rotated / 2)?];
    let [short, long] = lists;
    Ok(RopeScaling::Long {
        factors: if longest > original { long } else { short },
        amplitude: scaling.number("attention_factor", 1e-3..=1e3, Some(amplitude))?,
    })
}

/// Reads a list of `pairs` factors.
fn factors(scaling: &Fields<'_>, field: &str, pairs: usize) -> Result<Vec<f64>, LoadError> {
    let list = scaling.get(field).and_then(Value::as_array).filter(|list| list.len() == pairs);
    let number = |value: &Value| value.as_f64().filter(|factor| (1e-3..=1e6).contains(factor));
    let factors = list.and_then(|list| list.iter().map(number).collect());
    factors.ok_or_else(|| scaling.wrong(field, format!("a list of {pairs} numbers from 0.001 to 1000000")))
}

/// Original training context. Phi stores it outside the rope parameters.
fn original_context(fields: &Fields<'_>, scaling: &Fields<'_>) -> Result<f64, LoadError> {
    const FIELD: &str = "original_max_position_embeddings";
    let fields_or_scaling = if fields.is_absent(FIELD) { scaling } else { fields };
    fields_or_scaling.number(FIELD, 2.0..=MAX_CONTEXT, Some(f64::from(fields.max_positions()?)))
}
