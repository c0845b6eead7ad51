//! Parses callgrind's profile into instructions per layer, and counts the atomic ones.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;

use dapl_test::fake_device;

use super::atomics::Atomics;
use crate::Result;

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
    /// Atomic read-modify-writes among the instructions of the total.
    pub(super) atomics: f64,
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
            atomics: slope(first.atomics, second.atomics),
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
            atomics: sum.atomics + part.atomics,
        })
    }

    /// Parses callgrind's output, which may have several parts. Each line of costs begins with the address of an
    /// instruction.
    pub(super) fn of_parts(profile: &str, known: &Atomics) -> Result<Vec<Layers>> {
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
            } else if let Some((address, cost)) = instruction(line) {
                // The line after "calls=" is the inclusive cost of the callee, whose own lines are counted
                // separately.
                if !std::mem::take(&mut is_call) {
                    let layer = Layer::of(&object, &file);
                    *layers.of(layer) += cost;
                    if layer.is_in_total() && known.has(&object, address)? {
                        layers.atomics += cost;
                    }
                }
            }
        }
        Ok(parts)
    }

    fn of(&mut self, layer: Layer) -> &mut f64 {
        match layer {
            Layer::Libdat => &mut self.libdat,
            Layer::Object => &mut self.object,
            Layer::Provider => &mut self.provider,
            Layer::Libraries => &mut self.libraries,
            Layer::Device => &mut self.device,
            Layer::Program => &mut self.program,
        }
    }
}

/// The layer to which an instruction belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Layer {
    Libdat,
    Object,
    Provider,
    Libraries,
    Device,
    Program,
}

impl Layer {
    /// The layer of a shared object's code that was compiled from this source file.
    fn of(object: &str, file: &str) -> Self {
        if Path::new(object).parent().is_some_and(|directory| directory.ends_with(PROGRAMS)) {
            Layer::Program
        } else if object.contains(fake_device::LIBRARY) {
            Layer::Device
        } else if object.contains("libdat.so") {
            Layer::Libdat
        } else if file.contains("dapl/src/") {
            Layer::Object
        } else if file.contains("providers/") {
            Layer::Provider
        } else {
            Layer::Libraries
        }
    }

    fn is_in_total(self) -> bool {
        !matches!(self, Layer::Device | Layer::Program)
    }
}

/// Parses a line of costs: the address, the line of the source file, and the number of executed instructions.
fn instruction(line: &str) -> Option<(u64, f64)> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((address, words.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_lines_count_for_their_layer_and_inclusive_costs_of_calls_do_not() {
        let profile = "events: Ir\n\nob=(9) /p/counted/instructions\nfl=(9) instructions.c\nfn=(9) counted_send\n0x10 30 4\n\nob=(1) /p/lib/libdat.so.1\nfl=(1) dat/src/thunk/pass.rs\nfn=(1) dat_ep_post_send\n0x20 20 16\n\
            cob=(2) /p/lib/libdaplsm.so.1\ncfi=(2) /w/dapl/src/ep/dapl_post.rs\ncfn=(2) dapl_ep_post_send\ncalls=2 30\n0x24 20 900\n\n\
            ob=(2)\nfl=(2)\nfn=(2)\n0x30 1 80\nfi=(3) /w/providers/sm/src/qp/ring.rs\n0x34 1 40\n\
            fi=(4) /rustc/library/core/src/num.rs\n0x38 3 5\nfe=(2)\n0x3c 2 1\n\n\
            ob=(5) /p/fake/libibverbs.so.1\nfl=(5) fake_verbs.c\nfn=(5) post_send\n0x30 7 7\n";
        let atomics =
            Atomics::of_listings(&[("/p/lib/libdat.so.1", ""), ("/p/lib/libdaplsm.so.1", "  34:\tlock incl (%rax)\n")]);
        let layers = Layers::of_parts(profile, &atomics).unwrap()[0];
        let expected = Layers {
            libdat: 16.0,
            object: 81.0,
            provider: 40.0,
            libraries: 5.0,
            device: 7.0,
            program: 4.0,
            atomics: 40.0,
        };
        assert_eq!(layers, expected);
        let more = Layers { libdat: 36.0, device: 9.0, ..layers };
        assert_eq!(Layers::per_count(layers, more, [10, 20]).total(), 2.0);
    }

    #[test]
    fn each_part_has_its_own_costs_and_uses_names_of_earlier_parts() {
        let profile = "part: 1\nob=(2) /p/lib/libdaplsm.so.1\nfl=(2) /w/dapl/src/ep/dapl_post.rs\nfn=(2) a\n0x20 20 900\n\
            part: 2\nob=(2)\nfl=(2)\nfn=(2)\n0x24 21 80\n\npart: 3\ntotals: 0\n";
        let atomics = Atomics::of_listings(&[("/p/lib/libdaplsm.so.1", "")]);
        let parts = Layers::of_parts(profile, &atomics).unwrap();
        assert_eq!(parts.iter().map(|part| part.object).collect::<Vec<_>>(), [0.0, 900.0, 80.0, 0.0]);
        assert_eq!((Layers::sum(&parts).object, parts[2].divided_by(40).object), (980.0, 2.0));
    }
}
