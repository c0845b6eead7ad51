//! Two network namespaces with a link between them, and rules that impair the link until they are dropped.
//!
//! No process or namespace is left behind. A keeper process reads from a pipe to this process; when the pipe closes,
//! also because this process was killed, the keeper kills the programs in the namespaces and removes the namespaces. If
//! the keeper itself was killed, the next `sweep` removes the namespaces, whose names contain the pid of the exited
//! owner. Other namespaces and the devices of this machine stay unchanged.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::rule::{Rule, RuleCommand};
use crate::quiet::{run_quietly, text_of};
use crate::{Result, setup};

/// Name of the network device in both namespaces.
pub(crate) const DEVICE: &str = "d0";
/// IPv4 addresses of the ends, from the documentation range.
pub(crate) const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// IPv6 addresses of the ends.
pub(crate) const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
/// Default MTU of a link.
const MTU: u32 = 1500;
/// Prefix of the namespaces' names, followed by the owner's pid, the number of the wire, and the end (a or b).
const PREFIX: &str = "dapl-wire-";
/// Directory in which `ip netns` keeps its namespaces.
const NAMESPACES: &str = "/run/netns";

/// Shell script of the keeper; $@ are the namespaces. The script ignores the signals of a terminal, which it also
/// receives.
const KEEPER: &str = r#"
trap '' HUP INT TERM QUIT
read -r _
for name in "$@"; do
    for process in $(ip netns pids "$name"); do kill -KILL "$process"; done
    ip netns del "$name"
done"#;

/// Two connected namespaces. The drop kills the programs in the namespaces and removes the namespaces.
pub(crate) struct Wire {
    names: [String; 2],
    keeper: Child,
}

/// A rule in force. Dropping this value removes the rule.
#[must_use]
pub(crate) struct AppliedRule {
    undo: Command,
}

/// Checks whether links can be created here: root, programs, and kernel features. Installs missing programs if
/// possible, and removes namespaces that earlier processes have left.
pub(crate) fn prepare() -> Result {
    if !setup::is_root() {
        return Err("network namespaces require root".to_owned());
    }
    setup::require(&[setup::IP, setup::NFT, setup::ETHTOOL, setup::IPERF, setup::NSENTER, setup::SETPRIV])?;
    sweep();
    let wire = Wire::lay().map_err(|reason| format!("cannot create two connected network namespaces: {reason}"))?;
    let moved = Rule::Moved { from: ADDRESSES[1], to: ADDRESSES[0] };
    for rule in [Rule::Loss { per_mille: 0 }, Rule::Policer { megabits: 1 }, moved] {
        drop(
            wire.apply(0, rule)
                .map_err(|reason| format!("the nf_tables of this kernel lack a required feature: {reason}"))?,
        );
    }
    Ok(())
}

/// Whether this kernel supports a queue with a rate limit.
pub(crate) fn has_queues() -> bool {
    let rule = Rule::Queue { megabits: 1, milliseconds: 1 };
    Wire::lay().and_then(|wire| wire.apply(0, rule).map(drop)).is_ok()
}

/// Removes the namespaces of processes that have exited.
pub(crate) fn sweep() {
    for entry in fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner(&name).is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // A namespace that cannot be removed is harmless.
            let _ = Command::new("sh").args(["-c", KEEPER, "keeper", &name]).stdin(Stdio::null()).output();
        }
    }
}

/// Extracts the owner's pid from the name of a namespace, or `None` for other names.
fn owner(name: &str) -> Option<&str> {
    let owner = name.strip_prefix(PREFIX)?.split('-').next()?;
    owner.bytes().all(|byte| byte.is_ascii_digit()).then_some(owner).filter(|owner| !owner.is_empty())
}

impl Wire {
    /// Creates a wire. Both ends have IPv4 and IPv6 addresses, and GSO batches are split (see `set_gso`).
    pub(crate) fn lay() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b"].map(|end| format!("{name}-{end}"));
        let mut keeper = Command::new("sh");
        // Runs in a directory that is never removed.
        keeper.args(["-c", KEEPER, "keeper"]).args(&names).current_dir("/");
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().map_err(|error| format!("sh: {error}"))?;
        let wire = Wire { names, keeper };
        for name in &wire.names {
            run_quietly(Command::new("ip").args(["netns", "add", name]))?;
        }
        let mut ip = Command::new("ip");
        ip.args(["link", "add", DEVICE, "netns", &wire.names[0], "type", "veth"]);
        run_quietly(ip.args(["peer", "name", DEVICE, "netns", &wire.names[1]]))?;
        for end in 0..2 {
            wire.ip(end, &["link", "set", "lo", "up"])?;
            wire.ip(end, &["addr", "add", &format!("{}/24", ADDRESSES[end]), "dev", DEVICE])?;
            wire.ip(end, &["addr", "add", &format!("{}/64", V6[end]), "dev", DEVICE, "nodad"])?;
            wire.ip(end, &["link", "set", DEVICE, "up"])?;
        }
        wire.mtu(MTU)?;
        wire.set_gso(false)?;
        Ok(wire)
    }

    /// Returns a command that runs in one namespace, and is killed when the thread that started it ends.
    pub(crate) fn command(&self, end: usize, command: &Command) -> Command {
        let mut inside = Command::new("setpriv");
        inside.args(["--pdeathsig", "KILL", "nsenter"]);
        inside.arg(format!("--net={NAMESPACES}/{}", self.names[end])).arg("--");
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs `ip` in one namespace.
    pub(crate) fn ip(&self, end: usize, arguments: &[&str]) -> Result {
        run_quietly(Command::new("ip").args(["-n", &self.names[end]]).args(arguments)).map(drop)
    }

    /// Number of ICMP "unreachable" messages that one namespace has received.
    pub(crate) fn unreachables(&self, end: usize) -> Result<u64> {
        let mut cat = Command::new("cat");
        let text = text_of(&mut self.command(end, cat.arg("/proc/self/net/snmp")))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: ")).map(str::split_whitespace);
        let (names, values) = (lines.next(), lines.next());
        let mut counts = names.into_iter().flatten().zip(values.into_iter().flatten());
        let count = counts.find(|(name, _)| *name == "InDestUnreachs").and_then(|(_, value)| value.parse().ok());
        count.ok_or_else(|| format!("/proc/net/snmp has no field InDestUnreachs: {text}"))
    }

    /// Sets the MTU of both devices.
    pub(crate) fn mtu(&self, bytes: u32) -> Result {
        (0..2).try_for_each(|end| self.mtu_of(end, bytes))
    }

    /// Sets the MTU of one device.
    pub(crate) fn mtu_of(&self, end: usize, bytes: u32) -> Result {
        self.ip(end, &["link", "set", DEVICE, "mtu", &bytes.to_string()])
    }

    /// Sets whether GSO batches cross the wire as one packet, so that one lost packet drops a whole batch.
    pub(crate) fn set_gso(&self, is_on: bool) -> Result {
        let switch = if is_on { "on" } else { "off" };
        for end in 0..2 {
            let mut ethtool = Command::new("ethtool");
            ethtool.args(["-K", DEVICE, "tso", switch, "tx-udp-segmentation", switch, "gro", switch]);
            run_quietly(&mut self.command(end, &ethtool))?;
        }
        Ok(())
    }

    /// Applies a rule in one namespace. It affects incoming packets, `Rule::Queue` outgoing packets, and `Rule::Moved`
    /// both.
    pub(crate) fn apply(&self, end: usize, rule: Rule) -> Result<AppliedRule> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rule{}", COUNT.fetch_add(1, Ordering::Relaxed));
        match rule.text(&name) {
            RuleCommand::Nft { text, table } => {
                let mut nft = Command::new("nft");
                feed(&mut self.command(end, nft.args(["-f", "-"])), &text)?;
                let mut nft = Command::new("nft");
                nft.args(["delete", "table"]).args(table.split(' '));
                Ok(AppliedRule { undo: self.command(end, &nft) })
            }
            RuleCommand::Tc(words) => {
                let mut tc = Command::new("tc");
                tc.args(["qdisc", "add", "dev", DEVICE, "root"]).args(words.split(' '));
                run_quietly(&mut self.command(end, &tc))?;
                let mut undo = Command::new("tc");
                undo.args(["qdisc", "del", "dev", DEVICE, "root"]);
                Ok(AppliedRule { undo: self.command(end, &undo) })
            }
        }
    }

    /// Applies a rule in both namespaces.
    pub(crate) fn apply_to_both(&self, rule: Rule) -> Result<[AppliedRule; 2]> {
        Ok([self.apply(0, rule)?, self.apply(1, rule)?])
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Closing its input makes the keeper clean up.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Drop for AppliedRule {
    fn drop(&mut self) {
        // The command fails harmlessly if the wire no longer exists.
        let _ = self.undo.output();
    }
}

/// Runs a command with this input.
fn feed(command: &mut Command, text: &str) -> Result {
    let failed = |error: std::io::Error| format!("nft: {error}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().expect("the child was started with this stream piped");
    // The command may exit before it has read all its input; its exit status reports that.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("nft: {}\nits input:\n{text}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_named_by_the_suite_have_an_owner_pid() {
        assert_eq!(owner("dapl-wire-123-0-a"), Some("123"));
        assert_eq!(
            [owner("dapl-wire-"), owner("dapl-wire-x-0-a"), owner("docker"), owner("dapl-wire-../-0")],
            [None; 4]
        );
    }
}
