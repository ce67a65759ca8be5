//! `skein certs`: a certificate authority for one cluster, certificates of its nodes, and a shared secret,
//! as `--cluster-ca`, `--cluster-cert`, `--cluster-key` and `--cluster-secret-file` read them.

mod error;
mod files;
mod issue;
pub mod period;

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use skein_node::clock;

use self::error::CertsError;
use self::files::{read, replace, write_new};
use self::issue::{Authority, Pair};
use crate::exit::{Failure, OTHER, USAGE};

/// Name of the command.
pub const CERTS: &str = "certs";

/// Directory of the files unless flags say otherwise.
const DIRECTORY: &str = "certs";
/// Bytes of a cluster's secret; as long as the key of the HMAC that proves it.
const SECRET_BYTES: usize = 32;

const LONG_ABOUT: &str = "Make the certificates of a cluster: an authority once, and a certificate for each node.

  skein certs ca
  skein certs node worker-1 --host worker-1.example --host 10.0.0.7
  skein worker MODEL --cluster-ca certs/ca.crt --cluster-cert certs/worker-1.crt --cluster-key certs/worker-1.key

Every certificate serves both ends of a connection, as server and as client, and carries the name skein-cluster beside its \
hosts. Whoever has ca.key can add nodes: keep it off them. Certificates of another authority (cert-manager, Vault, openssl) do as \
well.";

/// Flags of `certs ca`.
#[derive(Debug, Args)]
struct CaFlags {
    #[arg(long, value_name = "DIR", default_value = DIRECTORY, help = "Directory for ca.crt and ca.key")]
    out: PathBuf,
    #[arg(long, value_name = "DAYS", default_value_t = 3650, help = "Days until it expires, up to 36500")]
    days: u32,
}

/// Flags of `certs node`.
#[derive(Debug, Args)]
struct NodeFlags {
    #[arg(value_name = "NAME", help = "Name of the node, and of its files")]
    name: String,
    #[arg(
        long,
        value_name = "HOST",
        help = "Name or address under which others reach it; may be given several times"
    )]
    host: Vec<String>,
    #[arg(long, value_name = "DIR", default_value = DIRECTORY, help = "Directory with ca.crt and ca.key")]
    ca: PathBuf,
    #[arg(long, value_name = "DIR", help = "Directory for NAME.crt and NAME.key [default: that of --ca]")]
    out: Option<PathBuf>,
    #[arg(
        long,
        value_name = "DAYS",
        help = "Days until it expires, up to 36500 [default: 365, or what is left of the authority]"
    )]
    days: Option<u32>,
    #[arg(
        long,
        help = "Replace NAME.crt, and keep NAME.key and without --host the hosts; running processes read it within seconds"
    )]
    renew: bool,
}

/// Flags of `certs secret`.
#[derive(Debug, Args)]
struct SecretFlags {
    #[arg(long, value_name = "FILE", help = "File to write, for its owner only [default: standard output]")]
    out: Option<PathBuf>,
}

/// The command for clap.
pub fn command() -> Command {
    let ca = Command::new("ca");
    let ca = CaFlags::augment_args(ca).about("Make the cluster's certificate authority").long_about(None);
    let node = NodeFlags::augment_args(Command::new("node"));
    let node = node.about("Make a node's certificate and key, or renew it").long_about(None);
    let secret = SecretFlags::augment_args(Command::new("secret"));
    let secret = secret.about("Make a random secret for --cluster-secret-file").long_about(None);
    Command::new(CERTS)
        .about("Make a cluster's certificates")
        .long_about(LONG_ABOUT)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([ca, node, secret])
}

/// Runs one of the subcommands.
///
/// # Errors
/// Invalid names or days, files that exist or cannot be read, an authority that cannot sign.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let outcome = match matches.subcommand() {
        Some(("ca", matches)) => make_ca(&flags(matches)),
        Some(("node", matches)) => make_node(&flags(matches)),
        Some(("secret", matches)) => make_secret(&flags(matches)),
        _ => Ok(()),
    };
    outcome.map_err(|error| Failure::new(if error.is_usage() { USAGE } else { OTHER }, error.to_string()))
}

fn flags<F: FromArgMatches>(matches: &ArgMatches) -> F {
    F::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

fn make_ca(flags: &CaFlags) -> Result<(), CertsError> {
    let (certificate, key) = paths(&flags.out, "ca");
    let pair = issue::authority(flags.days, clock::unix_time())?;
    write_pair(&pair, &certificate, &key)?;
    outln!("{}  the cluster's authority: every node needs this file", certificate.display());
    outln!("{}  its key: keep it off the nodes, and back it up", key.display());
    outln!("\nNext, for each node:\n  skein certs node NAME --host HOST --ca {}", flags.out.display());
    Ok(())
}

fn make_node(flags: &NodeFlags) -> Result<(), CertsError> {
    let (ca_certificate, ca_key) = paths(&flags.ca, "ca");
    let authority = Authority::parse(
        (&read(&ca_certificate)?, &ca_certificate),
        (&read(&ca_key)?, &ca_key),
        clock::unix_time(),
    )?;
    let out = flags.out.as_ref().unwrap_or(&flags.ca);
    let (certificate, key) = paths(out, issue::checked_name(&flags.name)?);
    let kept = if flags.renew { Some((read(&key)?, key.as_path())) } else { None };
    let kept = kept.as_ref().map(|(pem, path)| (pem.as_str(), *path));
    let hosts = match flags.renew && flags.host.is_empty() {
        true => issue::hosts((&read(&certificate)?, &certificate))?,
        false => flags.host.clone(),
    };
    let life = authority.life(flags.days)?;
    let pair = authority.node(&flags.name, &hosts, life, kept)?;
    let valid = match flags.days.is_none() && life < issue::USUAL_LIFE {
        true => format!("{}, as long as its authority", period::period(life)),
        false => period::period(life),
    };
    if flags.renew {
        replace(&certificate, &pair.certificate)?;
        outln!("{}  renewed for {valid}; its key stays", certificate.display());
        return Ok(());
    }
    write_pair(&pair, &certificate, &key).map_err(CertsError::or_renew)?;
    if out != &flags.ca {
        write_new(&out.join("ca.crt"), authority.pem(), false).or_else(CertsError::allow_existing)?;
    }
    let ca = out.join("ca.crt");
    outln!("{}  valid for {valid}", certificate.display());
    outln!("{}  its key, for its owner only", key.display());
    outln!(
        "\nNext: copy both and ca.crt to the node, not ca.key, and start its processes with\n  --cluster-ca {} --cluster-cert {} --cluster-key {}",
        ca.display(),
        certificate.display(),
        key.display()
    );
    Ok(())
}

fn make_secret(flags: &SecretFlags) -> Result<(), CertsError> {
    let secret = files::random_hex::<SECRET_BYTES>()? + "\n";
    let Some(path) = &flags.out else {
        out!("{secret}");
        return Ok(());
    };
    write_new(path, &secret, true)?;
    outln!("{}", path.display());
    outln!(
        "\nNext: copy it to every node, and start their processes with\n  --cluster-secret-file {}",
        path.display()
    );
    Ok(())
}

fn paths(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
}

/// Writes both files, or neither if one exists.
fn write_pair(pair: &Pair, certificate: &Path, key: &Path) -> Result<(), CertsError> {
    files::must_be_new(certificate)?;
    write_new(key, &pair.key, true)?;
    write_new(certificate, &pair.certificate, false)
}
