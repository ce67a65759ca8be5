//! Loads NCCL and looks up its functions. cudarc is not used for this, because it expects other file names
//! and panics if a function is missing.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::Library;

use crate::cuda::CudaError;

/// File name of the library.
const NAME: &str = "libnccl.so.2";
/// Supported versions, `10000 * major + 100 * minor + patch`. Before 2.18, initialisation blocks in more
/// places; another major version may have other types.
const VERSIONS: std::ops::Range<c_int> = 21_800..30_000;
/// Version of [`ncclConfig_t`] as filled here. The library uses its defaults for newer fields.
const CONFIG_VERSION: c_int = 23_000;
/// Marks an initialised [`ncclConfig_t`].
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// The values of `ncclSuccess` and `ncclInProgress`.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;
/// The value of `ncclUint32`. Only the size of 4 bytes matters, because values are only moved.
const WORDS: c_int = 3;
/// Bytes of a unique id.
pub const ID_BYTES: usize = 128;

/// Id with which ranks find each other. One rank creates it and sends it to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; ID_BYTES]);

// Statuses are integers, because a newer library may return values that the bindings' enum lacks.
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut ncclUniqueId) -> c_int;
type InitRankConfig =
    unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
type GetAsyncError = unsafe extern "C" fn(ncclComm_t, *mut c_int) -> c_int;
type Abort = unsafe extern "C" fn(ncclComm_t) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type LastError = unsafe extern "C" fn(ncclComm_t) -> *const c_char;
type AllGather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, ncclComm_t, CUstream) -> c_int;

/// NCCL, found at run time.
#[derive(Debug)]
pub struct Nccl {
    version: c_int,
    get_unique_id: GetUniqueId,
    init_rank_config: InitRankConfig,
    get_async_error: GetAsyncError,
    abort: Abort,
    error_string: ErrorString,
    last_error: LastError,
    all_gather: AllGather,
    /// Stays loaded: its threads may outlive a communicator.
    _library: &'static Library,
}

impl Nccl {
    /// Opens the library on the loader's search path.
    ///
    /// # Errors
    /// If it is missing, lacks a function, or its version is not supported.
    pub fn open() -> Result<Arc<Self>, CudaError> {
        Self::open_at(OsStr::new(NAME))
    }

    /// Opens the library at `path`.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_at(path: &OsStr) -> Result<Arc<Self>, CudaError> {
        // SAFETY: NCCL's constructors have no conditions.
        let library =
            unsafe { Library::new(path) }.map_err(|error| missing(format!("is missing: {error}")))?;
        let library: &'static Library = Box::leak(Box::new(library));
        let mut version = 0;
        // SAFETY: the function has this type; the out-pointer is valid for the call.
        let code = unsafe { function::<GetVersion>(library, "ncclGetVersion", 0)?(&mut version) };
        if code != SUCCESS {
            return Err(missing(format!("does not tell its version (status {code})")));
        }
        if !VERSIONS.contains(&version) {
            let newest = VERSIONS.end / 10_000 - 1;
            let why = format!("is version {}; 2.18 or newer of {newest}.x is needed", text_of(version));
            return Err(missing(why));
        }
        // SAFETY: in these versions the functions have these types.
        unsafe {
            Ok(Arc::new(Self {
                version,
                get_unique_id: function(library, "ncclGetUniqueId", version)?,
                init_rank_config: function(library, "ncclCommInitRankConfig", version)?,
                get_async_error: function(library, "ncclCommGetAsyncError", version)?,
                abort: function(library, "ncclCommAbort", version)?,
                error_string: function(library, "ncclGetErrorString", version)?,
                last_error: function(library, "ncclGetLastError", version)?,
                all_gather: function(library, "ncclAllGather", version)?,
                _library: library,
            }))
        }
    }

    /// Version of the library, as `2.28.3`.
    pub fn version(&self) -> String {
        text_of(self.version)
    }

    /// Creates an id for a new group of ranks.
    ///
    /// # Errors
    /// If the library finds no network interface to listen on.
    pub fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = MaybeUninit::<ncclUniqueId>::zeroed();
        // SAFETY: the out-pointer is valid for the call.
        let code = unsafe { (self.get_unique_id)(id.as_mut_ptr()) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut())?;
        // SAFETY: 128 bytes without padding, zeroed and then written by the library.
        Ok(UniqueId(unsafe { std::mem::transmute::<ncclUniqueId, [u8; ID_BYTES]>(id.assume_init()) }))
    }

    /// Begins to join; returns before all ranks have joined.
    pub(super) fn begin(&self, id: &UniqueId, rank: usize, ranks: usize) -> Result<ncclComm_t, CudaError> {
        let mut raw = std::ptr::null_mut();
        let mut config = self.config();
        // SAFETY: any 128 bytes are an id.
        let id = unsafe { std::mem::transmute::<[u8; ID_BYTES], ncclUniqueId>(id.0) };
        // SAFETY: the out-pointer and the configuration are valid for the call, and the device is bound.
        let code =
            unsafe { (self.init_rank_config)(&mut raw, ranks as c_int, id, rank as c_int, &mut config) };
        if code != IN_PROGRESS {
            self.check("ncclCommInitRankConfig", code, std::ptr::null_mut())?;
        }
        Ok(raw)
    }

    /// Default configuration, but non-blocking.
    fn config(&self) -> ncclConfig_t {
        // SAFETY: integers and pointers, which may be zero.
        let mut config: ncclConfig_t = unsafe { MaybeUninit::zeroed().assume_init() };
        config.size = size_of::<ncclConfig_t>();
        config.magic = CONFIG_MAGIC;
        config.version = CONFIG_VERSION.min(self.version) as u32;
        for undefined in [
            &mut config.cgaClusterSize,
            &mut config.minCTAs,
            &mut config.maxCTAs,
            &mut config.splitShare,
            &mut config.trafficClass,
            &mut config.collnetEnable,
            &mut config.CTAPolicy,
            &mut config.shrinkShare,
            &mut config.nvlsCTAs,
            &mut config.nChannelsPerNetPeer,
            &mut config.nvlinkCentricSched,
            &mut config.graphUsageMode,
            &mut config.numRmaCtx,
            &mut config.maxP2pPeers,
        ] {
            *undefined = c_int::MIN;
        }
        config.blocking = 0;
        config
    }

    /// The communicator's state: [`SUCCESS`], [`IN_PROGRESS`], or why it is lost.
    pub(super) fn state(&self, raw: ncclComm_t) -> Result<c_int, CudaError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive; the out-pointer is valid for the call.
        let code = unsafe { (self.get_async_error)(raw, &mut state) };
        self.check("ncclCommGetAsyncError", code, raw)?;
        if state != IN_PROGRESS {
            self.check("a collective operation", state, raw)?;
        }
        Ok(state)
    }

    /// # Safety
    /// `own` must have `words` words on the device and `all` that many per rank, both until the work is done.
    pub(super) unsafe fn all_gather(
        &self,
        own: u64,
        all: u64,
        words: usize,
        raw: ncclComm_t,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { (self.all_gather)(own as *const _, all as *mut _, words, WORDS, raw, stream) };
        if code == IN_PROGRESS { Ok(()) } else { self.check("ncclAllGather", code, raw) }
    }

    /// Ends a communicator. May never return.
    pub(super) fn abort(&self, raw: ncclComm_t) {
        // SAFETY: the communicator is alive, and the caller no longer uses it. Errors do not matter.
        let _ = unsafe { (self.abort)(raw) };
    }

    fn check(&self, call: &'static str, code: c_int, raw: ncclComm_t) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any code and returns a constant string or null.
        let name = text(unsafe { (self.error_string)(code) });
        // SAFETY: the communicator is alive or null; the string lives until the next call.
        let last = text(unsafe { (self.last_error)(raw) });
        Err(CudaError::Nccl {
            call,
            code,
            text: if last.is_empty() { name } else { format!("{name}: {last}") },
        })
    }
}

/// # Safety
/// `name` must be a function of type `F`, or missing.
unsafe fn function<F: Copy>(library: &Library, name: &'static str, version: c_int) -> Result<F, CudaError> {
    // SAFETY: guaranteed by the caller.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|_| {
        let of = if version == 0 { String::new() } else { format!(" of version {}", text_of(version)) };
        missing(format!("{of} has no function {name}").trim_start().to_owned())
    })
}

fn missing(why: String) -> CudaError {
    CudaError::NoNccl { why }
}

fn text_of(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: a string of the library, copied at once.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
