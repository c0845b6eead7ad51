//! Network impairments as values, and as text for nft or tc.
//!
//! Does no I/O; `wire` applies the rules. A rule applies to one side of the link and, unless stated otherwise, to its
//! incoming packets.
#![forbid(unsafe_code)]

use super::wire::DEVICE;

/// One impairment of the network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    /// Drops `per_mille` of 1000 TCP and UDP packets, at random.
    Loss { per_mille: u32 },
    /// Silently drops IP packets longer than `longest` bytes.
    BlackHole { longest: u32 },
    /// Drops all packets.
    Silence,
    /// Rejects UDP with ICMP host unreachable.
    HostUnreachable,
    /// A firewall that admits UDP only to these ports.
    Only { ports: &'static str },
    /// A policer: drops TCP and UDP packets above this rate in Mbit/s.
    Policer { megabits: u32 },
    /// A queue of this length in milliseconds for outgoing packets, drained at this rate.
    Queue { megabits: u32, milliseconds: u32 },
    /// Address translation in both directions: the peer appears at, and is reached by, another address.
    Moved { from: &'static str, to: &'static str },
}

/// The program that applies a rule.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum RuleCommand {
    /// An nft table: its text, and its family and name.
    Nft { text: String, table: String },
    /// Arguments of `tc qdisc add dev DEVICE root`.
    Tc(String),
}

impl Rule {
    /// Formats the rule; `name` is the table's.
    pub(super) fn text(self, name: &str) -> RuleCommand {
        // Burst that `Rule::Policer` admits. Small, so that the policer drops excess packets and does not act like a
        // queue.
        const BURST_KIB: u32 = 256;
        match self {
            Rule::Loss { per_mille } => {
                ingress(name, &format!("meta l4proto {{ tcp, udp }} numgen random mod 1000 < {per_mille} drop"))
            }
            Rule::BlackHole { longest } => ingress(name, &format!("meta length > {longest} drop")),
            Rule::Silence => ingress(name, "drop"),
            Rule::HostUnreachable => RuleCommand::Nft {
                text: format!(
                    "table inet {name} {{\nchain in {{\ntype filter hook input priority 0\n\
                     meta l4proto udp reject with icmpx type host-unreachable\n}}\n}}\n"
                ),
                table: format!("inet {name}"),
            },
            Rule::Only { ports } => ingress(name, &format!("udp dport != {{ {ports} }} drop")),
            Rule::Policer { megabits } => {
                let rate = megabits * 125;
                let limit = format!("limit rate over {rate} kbytes/second burst {BURST_KIB} kbytes");
                ingress(name, &format!("meta l4proto {{ tcp, udp }} {limit} drop"))
            }
            Rule::Queue { megabits, milliseconds } => {
                RuleCommand::Tc(format!("tbf rate {megabits}mbit burst 64kb latency {milliseconds}ms"))
            }
            Rule::Moved { from, to } => RuleCommand::Nft {
                text: format!(
                    "table ip {name} {{\n\
                     chain in {{\ntype filter hook prerouting priority raw\nip saddr {from} meta l4proto udp ip saddr set {to}\n}}\n\
                     chain out {{\ntype route hook output priority raw\nip daddr {to} meta l4proto udp ip daddr set {from}\n}}\n}}\n"
                ),
                table: format!("ip {name}"),
            },
        }
    }
}

/// An nft table for incoming packets. Its hook runs before those of the tables for IP.
fn ingress(name: &str, statement: &str) -> RuleCommand {
    let hook = format!("type filter hook ingress device \"{DEVICE}\" priority 0");
    let text = format!("table netdev {name} {{\nchain in {{\n{hook}\n{statement}\n}}\n}}\n");
    RuleCommand::Nft { text, table: format!("netdev {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nft(rule: Rule) -> String {
        match rule.text("t") {
            RuleCommand::Nft { text, .. } => text,
            RuleCommand::Tc(text) => panic!("{text}"),
        }
    }

    #[test]
    fn rules_have_the_syntax_of_nft() {
        let loss = nft(Rule::Loss { per_mille: 50 });
        assert!(
            loss.contains("device \"d0\"")
                && loss.contains("\nmeta l4proto { tcp, udp } numgen random mod 1000 < 50 drop\n")
        );
        assert!(nft(Rule::BlackHole { longest: 1300 }).contains("\nmeta length > 1300 drop\n"));
        assert!(nft(Rule::Policer { megabits: 80 }).contains("limit rate over 10000 kbytes/second burst"));
        assert!(nft(Rule::Only { ports: "7, 9-10" }).contains("\nudp dport != { 7, 9-10 } drop\n"));
        let moved = nft(Rule::Moved { from: "192.0.2.2", to: "192.0.2.12" });
        assert!(moved.contains("saddr set 192.0.2.12") && moved.contains("daddr set 192.0.2.2"), "{moved}");
        [loss, moved].iter().for_each(|text| assert_eq!(text.matches("{\n").count(), text.matches("}\n").count()));
    }

    #[test]
    fn a_queue_rule_becomes_a_tc_command() {
        let text = Rule::Queue { megabits: 200, milliseconds: 10 }.text("t");
        assert_eq!(text, RuleCommand::Tc("tbf rate 200mbit burst 64kb latency 10ms".to_owned()));
    }
}
