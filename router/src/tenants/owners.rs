//! Names of tenants in a directory of theirs: hashes under a key that is drawn for the directory. What is
//! stored there, as in a backup without the key, allows no guesses at API keys, and is not the secret that
//! separates the tenants' streams.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use ring::hmac;
use skein_sys::regular_file;

use crate::batch::disk::{self, Disk};

/// File of the key.
const FILE: &str = "tenants.key";
/// Its length, in bytes.
const KEY_BYTES: usize = 32;
/// Begins a hash under the key. Other names are those of logs before there was one.
const PREFIX: &str = "k1-";

/// Gives names to tenants.
#[derive(Debug)]
pub struct Owners(Option<hmac::Key>);

impl Owners {
    /// Reads the key in `directory`, or draws it. On a full disk, names stay as they are until a later start.
    pub fn open(directory: &Path, disk: &Disk) -> io::Result<Self> {
        let path = directory.join(FILE);
        let key = match regular_file::read_if_there(&path, KEY_BYTES as u64)? {
            Some(key) => key,
            None => match draw(&path, disk) {
                Err(error) if disk::is_full(&error) => return Ok(Self(None)),
                drawn => drawn?.to_vec(),
            },
        };
        if key.len() != KEY_BYTES {
            let message = format!("{FILE} has {} bytes instead of {KEY_BYTES}; restore it", key.len());
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        Ok(Self(Some(hmac::Key::new(hmac::HMAC_SHA256, &key))))
    }

    /// Whether names are hashes; not so if there was no room for the key.
    pub fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// Name of the tenant `name` in the directory. The one without a key keeps its empty name.
    pub fn name(&self, name: &str) -> String {
        let Some(key) = self.0.as_ref().filter(|_| !name.is_empty() && !name.starts_with(PREFIX)) else {
            return name.to_owned();
        };
        let hash = hmac::sign(key, name.as_bytes());
        let hex = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}"));
        hex.fold(PREFIX.to_owned(), |name, byte| name + &byte)
    }
}

/// Draws a key and stores it at `path`, whole or not at all.
fn draw(path: &Path, disk: &Disk) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let draft = path.with_extension("new");
    let mut file = disk.create(&draft)?;
    disk.append(&mut file, &mut 0, &key)?;
    disk.sync(&file)?;
    std::fs::rename(&draft, path)?;
    Ok(key)
}
