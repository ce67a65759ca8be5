//! Compiles the protobuf files with protox (pure Rust), so that no `protoc` has to be installed.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/skein/v1/inference.proto",
        "proto/skein/worker/v1/worker.proto",
        "proto/envoy/service/ext_proc/v3/external_processor.proto",
        "proto/inference/grpc_service.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    // Served by gRPC reflection on every process.
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // Envoy's bodies and KServe's tensors are passed through without a copy.
    let configured = tonic_prost_build::configure().bytes(".envoy").bytes(".inference");
    // Prompts are the longest of a router's frames.
    configured.bytes(".skein.worker.v1.RouterFrame.prompt").compile_fds(descriptors)?;
    Ok(())
}
