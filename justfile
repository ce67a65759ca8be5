# Short names for commands of CONTRIBUTING.md; optional (https://just.systems).

# format, lints and tests of a crate: just quick gguf
quick crate:
    cargo fmt --all -- --check && cargo clippy -p skein-{{crate}} --all-targets -- -D warnings && cargo test -p skein-{{crate}}
# tests by name: just test router validate
test crate filter='':
    cargo test -p skein-{{crate}} {{filter}} -- --nocapture
# a seed of the simulator, with its log: just sim 316
sim seed:
    TEST_SIM_SEED={{seed}} RUST_LOG=debug cargo test -p skein-simulation --test seeds nothing -- --nocapture
# links, comment width, size of the repository
docs:
    python3 docs/check.py && tools/comment-width && tools/tracked-bytes
# all that CI runs
ci:
    .ci/run
