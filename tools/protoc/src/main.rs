//! The part of `protoc` that prost-build calls: `-o OUT [-I DIR]... FILE...` writes the files' descriptors,
//! with their imports and comments, to OUT; `--without-comments` leaves those out.

use std::path::PathBuf;
use std::process::ExitCode;

use prost::Message;

#[derive(Default)]
struct Arguments {
    out: Option<PathBuf>,
    includes: Vec<PathBuf>,
    files: Vec<PathBuf>,
    without_comments: bool,
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--version") {
        println!("libprotoc 30.0 (skein-protoc {})", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    match parse(std::env::args().skip(1)).and_then(|arguments| compile(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("skein-protoc: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(argument) = given.next() {
        let mut value = |flag: &str| given.next().ok_or(format!("{flag} needs a path after it"));
        match argument.as_str() {
            "-o" => arguments.out = Some(value("-o")?.into()),
            "-I" => arguments.includes.push(value("-I")?.into()),
            // Imports and source info are always included.
            "--include_imports" | "--include_source_info" => {}
            "--without-comments" => arguments.without_comments = true,
            flag if flag.starts_with("-I") => arguments.includes.push(flag[2..].into()),
            flag if flag.starts_with('-') => {
                return Err(format!("{flag} is not supported; install protobuf's protoc for it"));
            }
            file => arguments.files.push(file.into()),
        }
    }
    Ok(arguments)
}

fn compile(arguments: &Arguments) -> Result<(), String> {
    let out = arguments.out.as_ref().ok_or("give the output file with -o")?;
    let mut descriptors =
        protox::compile(&arguments.files, &arguments.includes).map_err(|error| format!("{error:?}"))?;
    if arguments.without_comments {
        descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    }
    std::fs::write(out, descriptors.encode_to_vec()).map_err(|error| format!("{}: {error}", out.display()))
}
