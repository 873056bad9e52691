//! Compiles `src/jpeg/decode.c` against the libjpeg-turbo that `turbojpeg-sys` has built.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/jpeg/decode.c");
    println!("cargo:rerun-if-env-changed=JPEG_SIMD");
    let include =
        std::env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys has built libjpeg-turbo");
    let config = PathBuf::from(&include).join("jconfig.h");
    let config = std::fs::read_to_string(&config).expect("libjpeg-turbo's jconfig.h");
    let value = |name: &str| {
        let mut words = config.lines().map(str::split_whitespace);
        words.find_map(|mut line| {
            (line.next() == Some("#define") && line.next() == Some(name)).then(|| line.next())?
        })
    };
    let has_simd = value("WITH_SIMD") == Some("1");
    let wants_simd = std::env::var("JPEG_SIMD").as_deref() != Ok("off");
    assert!(
        has_simd == wants_simd,
        "libjpeg-turbo was compiled {} SIMD. Run `cargo clean -p turbojpeg-sys`, then build in the \
         checkout, where .cargo/config.toml names the right cmake; JPEG_SIMD=off builds without SIMD.",
        if has_simd { "with" } else { "without" },
    );
    let version = value("LIBJPEG_TURBO_VERSION").expect("libjpeg-turbo's version");
    let simd = if has_simd { "with SIMD" } else { "without SIMD" };
    println!("cargo:rustc-env=SHARDFEED_JPEG_LIBRARY=libjpeg-turbo {version} {simd}");
    cc::Build::new().file("src/jpeg/decode.c").include(include).compile("shardfeed_jpeg");
}
