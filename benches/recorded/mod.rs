//! Recorded models of the folder that `RESAT_SHARED` names, `../shared` where it names none.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A recorded model: its folder and the file of its weights, which is made in `temporary` where it is not there. In words why there is none.
pub(crate) fn model(name: &str, temporary: &Path) -> Result<(PathBuf, PathBuf), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("RESAT_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let folder = shared.join("corpus").join(name);
    if !folder.join("model.relay").exists() {
        return Err(format!("{} is not there", folder.display()));
    }
    let recorded = folder.join("model.params");
    if recorded.exists() {
        return Ok((folder, recorded));
    }
    let made = temporary.join(format!("{name}.params"));
    // The environment that the rivals are installed into has numpy, the system's Python perhaps not.
    let pythons = [root.join("target/venv/bin/python"), PathBuf::from("python3")];
    let makes = |python: &PathBuf| {
        let has_numpy = Command::new(python).args(["-c", "import numpy"]).output();
        let make = || Command::new(python).arg(shared.join("corpus/params.py")).arg(&folder).arg(&made).status();
        has_numpy.is_ok_and(|o| o.status.success()) && make().is_ok_and(|s| s.success())
    };
    match pythons.iter().any(makes) {
        true => Ok((folder, made)),
        false => {
            Err("its weights can't be made: python3 with numpy is needed, or target/venv (`make bench-rivals`)".into())
        }
    }
}
