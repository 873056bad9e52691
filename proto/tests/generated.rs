//! Checks that the generated code in `src/generated` matches the .proto files. After a change of
//! these run `SHARDFEED_WRITE_GENERATED=1 cargo test -p shardfeed-proto --test generated`.
#![allow(clippy::unwrap_used)]

use std::path::Path;

const FILES: [&str; 6] = [
    "shardfeed/common/v1/account.proto",
    "shardfeed/common/v1/job.proto",
    "shardfeed/common/v1/record.proto",
    "shardfeed/coordinator/v1/coordinator.proto",
    "shardfeed/coordinator/v1/peer.proto",
    "shardfeed/trainer/v1/trainer.proto",
];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES, [root]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure().out_dir(out.path()).compile_fds(descriptors).unwrap();
    let kept = root.join("src/generated");
    for entry in std::fs::read_dir(out.path()).unwrap() {
        let made = entry.unwrap().path();
        let text = std::fs::read_to_string(&made).unwrap();
        let file = kept.join(made.file_name().unwrap());
        if std::env::var_os("SHARDFEED_WRITE_GENERATED").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(known == text, "{} differs from the .proto files", file.display());
    }
}
