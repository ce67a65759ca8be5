//! Builds small files for tests, valid or malformed.

/// A file under construction.
#[derive(Clone)]
pub struct Sample {
    pub version: u32,
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Name, sizes (innermost first), type and offset of each tensor.
    pub tensors: Vec<(Vec<u8>, Vec<u64>, u32, u64)>,
    pub data: Vec<u8>,
    /// Tensor and entry counts to write, if they differ from the real ones.
    pub claims: Option<(u64, u64)>,
    pub alignment: usize,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
            claims: None,
            alignment: 32,
        }
    }
}

/// A string as GGUF encodes it.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A value preceded by its type.
pub fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], bytes].concat()
}

pub fn list(kind: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    value(9, &[&kind.to_le_bytes()[..], &len.to_le_bytes(), bytes].concat())
}

pub fn texts(values: &[&str]) -> Vec<u8> {
    list(8, values.len() as u64, &values.iter().flat_map(|value| text(value)).collect::<Vec<_>>())
}

impl Sample {
    pub fn with(mut self, key: &str, value: Vec<u8>) -> Self {
        self.entries.push((text(key), value));
        self
    }

    pub fn text(self, key: &str, of: &str) -> Self {
        self.with(key, value(8, &text(of)))
    }

    pub fn number(self, key: &str, of: u32) -> Self {
        self.with(key, value(4, &of.to_le_bytes()))
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.push((text(name), dims.to_vec(), kind, offset));
        self
    }

    pub fn data(self, bytes: usize) -> Self {
        Self { data: (0..bytes).map(|i| i as u8).collect(), ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        let (tensors, entries) =
            self.claims.unwrap_or((self.tensors.len() as u64, self.entries.len() as u64));
        file.extend(tensors.to_le_bytes());
        file.extend(entries.to_le_bytes());
        self.entries.iter().for_each(|(key, value)| file.extend([&key[..], value].concat()));
        for (name, dims, kind, offset) in &self.tensors {
            file.extend(name);
            file.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(&self.data);
        file
    }
}
