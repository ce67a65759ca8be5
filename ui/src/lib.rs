//! The page at `/ui`: its files, compressed, as parts of the binary. It knows nothing of requests or servers;
//! its script calls the APIs of the server that sends it.

use std::io::Read;

use flate2::read::GzDecoder;

/// Path, entity tag and gzip bytes of each file.
static FILES: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// One file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Value of `content-type`.
    pub content_type: &'static str,
    /// Value of `etag`, weak: changes with the content.
    pub tag: &'static str,
    /// Its content, compressed.
    pub gzip: &'static [u8],
}

impl File {
    /// Its content; `None` if the build is broken.
    pub fn plain(&self) -> Option<Vec<u8>> {
        let mut plain = Vec::new();
        GzDecoder::new(self.gzip).read_to_end(&mut plain).ok()?;
        Some(plain)
    }
}

/// The file at `path`, relative to the page's own address.
pub fn file(path: &str) -> Option<File> {
    let (_, tag, gzip) = FILES.iter().find(|(name, ..)| *name == path)?;
    let content_type = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    Some(File { content_type, tag, gzip })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most compressed bytes of the whole page.
    const MOST_BYTES: usize = 150 * 1024;

    #[test]
    fn the_page_is_small_whole_and_refers_to_itself_only() {
        let bytes: usize = FILES.iter().map(|(.., gzip)| gzip.len()).sum();
        assert!(bytes <= MOST_BYTES, "{bytes} bytes");
        for (name, ..) in FILES {
            let text = String::from_utf8(file(name).expect("it is there").plain().expect("it is whole"))
                .expect("text");
            for import in text.split("from '").skip(1).chain(text.split("from\"").skip(1)) {
                let end = import.find(['\'', '"']).expect("an end");
                let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                let path = import[..end].trim_start_matches("./");
                let path = if folder.is_empty() { path.to_owned() } else { format!("{folder}/{path}") };
                assert!(file(&path).is_some(), "{name} imports {path}");
            }
        }
        assert!(file("../Cargo.toml").is_none() && file("").is_none());
    }
}
