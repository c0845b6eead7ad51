//! Parses callgrind's profile into instructions per layer.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;

use super::fake_device;

/// Directory of the programs whose calls are counted; the profile contains its name.
pub(super) const PROGRAMS: &str = "counted";

/// Instructions per layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Layers {
    pub(super) libdat: f64,
    pub(super) object: f64,
    pub(super) provider: f64,
    /// The Rust standard library, third-party crates and the C library.
    pub(super) libraries: f64,
    /// The libibverbs replacement; not part of the total.
    pub(super) device: f64,
    /// The calling program; not part of the total.
    pub(super) program: f64,
}

impl Layers {
    pub(super) fn total(&self) -> f64 {
        self.libdat + self.object + self.provider + self.libraries
    }

    /// Instructions per operation, from two runs with different counts.
    pub(super) fn per_count(first: Layers, second: Layers, counts: [u32; 2]) -> Layers {
        let slope = |a: f64, b: f64| (b - a) / f64::from(counts[1] - counts[0]);
        Layers {
            libdat: slope(first.libdat, second.libdat),
            object: slope(first.object, second.object),
            provider: slope(first.provider, second.provider),
            libraries: slope(first.libraries, second.libraries),
            device: slope(first.device, second.device),
            program: slope(first.program, second.program),
        }
    }

    pub(super) fn divided_by(self, calls: u32) -> Layers {
        Layers::per_count(Layers::default(), self, [0, calls])
    }

    pub(super) fn sum(parts: &[Layers]) -> Layers {
        parts.iter().fold(Layers::default(), |sum, part| Layers {
            libdat: sum.libdat + part.libdat,
            object: sum.object + part.object,
            provider: sum.provider + part.provider,
            libraries: sum.libraries + part.libraries,
            device: sum.device + part.device,
            program: sum.program + part.program,
        })
    }

    /// Parses callgrind's output, which may have several parts.
    pub(super) fn of_parts(profile: &str) -> Vec<Layers> {
        let (mut parts, mut names) = (vec![Layers::default()], HashMap::new());
        let (mut object, mut file, mut is_call) = (String::new(), String::new(), false);
        for line in profile.lines() {
            let Some(layers) = parts.last_mut() else { break };
            if line.starts_with("part:") {
                parts.push(Layers::default());
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if let Some((key, value)) = line.split_once('=') {
                // An object is named in full once, "ob=(3) name", and later as "ob=(3)". Files are numbered
                // separately.
                let kind = match key {
                    "ob" | "cob" => "object",
                    "fl" | "fi" | "fe" | "cfi" | "cfl" => "file",
                    _ => continue,
                };
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                if !name.is_empty() {
                    names.insert((kind, number.to_owned()), name.to_owned());
                }
                let name = names.get(&(kind, number.to_owned())).cloned().unwrap_or_default();
                match key {
                    "ob" => object = name,
                    "fl" | "fi" | "fe" => file = name,
                    _ => {}
                }
            } else if let Some((_, cost)) = line
                .split_once(' ')
                .filter(|_| line.starts_with(['+', '-', '*', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']))
            {
                // The line after "calls=" is the inclusive cost of the callee, whose own lines are counted
                // separately.
                if !std::mem::take(&mut is_call) {
                    *layers.of(&object, &file) += cost.trim().parse().unwrap_or(0.0);
                }
            }
        }
        parts
    }

    fn of(&mut self, object: &str, file: &str) -> &mut f64 {
        if Path::new(object).parent().is_some_and(|directory| directory.ends_with(PROGRAMS)) {
            &mut self.program
        } else if object.contains(fake_device::LIBRARY) {
            &mut self.device
        } else if object.contains("libdat.so") {
            &mut self.libdat
        } else if file.contains("dapl/src/") {
            &mut self.object
        } else if file.contains("providers/") {
            &mut self.provider
        } else {
            &mut self.libraries
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_lines_count_for_their_layer_and_inclusive_costs_of_calls_do_not() {
        let profile = "events: Ir\n\nob=(9) /p/counted/instructions\nfl=(9) instructions.c\nfn=(9) counted_send\n30 4\n\nob=(1) /p/lib/libdat.so.1\nfl=(1) dat/src/thunk/pass.rs\nfn=(1) dat_ep_post_send\n20 16\n\
            cob=(2) /p/lib/libdaplsm.so.1\ncfi=(2) /w/dapl/src/ep/dapl_post.rs\ncfn=(2) dapl_ep_post_send\ncalls=2 30\n20 900\n\n\
            ob=(2)\nfl=(2)\nfn=(2)\n+1 80\nfi=(3) /w/providers/sm/src/qp/ring.rs\n* 40\nfi=(4) /rustc/library/core/src/num.rs\n-3 5\nfe=(2)\n+2 1\n\n\
            ob=(5) /p/fake/libibverbs.so.1\nfl=(5) fake_verbs.c\nfn=(5) post_send\n7 7\n";
        let layers = Layers::of_parts(profile)[0];
        assert_eq!(
            layers,
            Layers { libdat: 16.0, object: 81.0, provider: 40.0, libraries: 5.0, device: 7.0, program: 4.0 }
        );
        let more = Layers { libdat: 36.0, device: 9.0, ..layers };
        assert_eq!(Layers::per_count(layers, more, [10, 20]).total(), 2.0);
    }

    #[test]
    fn each_part_has_its_own_costs_and_uses_names_of_earlier_parts() {
        let profile = "part: 1\nob=(2) /p/lib/libdaplsm.so.1\nfl=(2) /w/dapl/src/ep/dapl_post.rs\nfn=(2) a\n20 900\n\
            part: 2\nob=(2)\nfl=(2)\nfn=(2)\n+1 80\n\npart: 3\ntotals: 0\n";
        let parts = Layers::of_parts(profile);
        assert_eq!(parts.iter().map(|part| part.object).collect::<Vec<_>>(), [0.0, 900.0, 80.0, 0.0]);
        assert_eq!((Layers::sum(&parts).object, parts[2].divided_by(40).object), (980.0, 2.0));
    }
}
