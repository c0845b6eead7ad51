//! The reader against processes that are honest, mute, cut short, talkative, or none at all.

use std::thread::JoinHandle;

use rustix::net::SendFlags;

use super::*;

/// Ids that no process has: larger than the kernel gives out, and each test's own.
fn nobody(number: u32) -> u32 {
    0x4000_0000 + (std::process::id() << 4) + number
}

/// One that listens under a name that no library takes.
struct Liar {
    name: Name,
    listener: OwnedFd,
}

impl Liar {
    fn new(number: u32) -> Self {
        let name = Name { uid: rustix::process::geteuid().as_raw(), pid: nobody(number), number: 0 };
        Liar { name, listener: socket::listen(name).unwrap() }
    }

    /// Says that to each who asks, and hangs up, until what it returns is dropped. Other tests' tools may ask it too.
    fn says(&self, what: Vec<u8>) -> Talker {
        let listener = self.listener.try_clone().unwrap();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let thread = std::thread::spawn(move || {
            loop {
                let mut fds = [PollFd::new(&stopped, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
                poll(&mut fds, None).unwrap();
                if !fds[0].revents().is_empty() {
                    return;
                }
                let peer = rustix::net::accept(&listener).unwrap();
                let mut rest = what.as_slice();
                // Who has heard enough hangs up first.
                while let (false, Ok(sent)) = (rest.is_empty(), rustix::net::send(&peer, rest, SendFlags::NOSIGNAL)) {
                    rest = &rest[sent..];
                }
            }
        });
        Talker { stop: Some(stop), thread: Some(thread) }
    }

    fn told(&self) -> Result<Process, Trouble> {
        let mut found = ask(&[self.name], Instant::now() + LOOK, &mut ROOM.clone());
        assert_eq!(found.len(), 1);
        found.remove(0).told
    }

    fn word(&self, what: impl Into<Vec<u8>>) -> &'static str {
        let _talker = self.says(what.into());
        self.told().map_or_else(|trouble| trouble.word(), |_| "told")
    }
}

struct Talker {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Talker {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn names_are_found_in_the_list_of_the_kernel() {
    let list = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/a @dapl-counters/1/2/3/4
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1000/4711/1
0000000000000000: 00000003 00000000 00000000 0001 03 12347 @dapl-counters/1000/4711/1
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1000/4711/0
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1001/4711/0
0000000000000000: 00000002 00000000 00000000 0001 01 12348 @dapl-counters/1000/x/1
0000000000000000: 00000002 00000000 00000000 0001 01 12349 @dapl-counters/1000/99999999999/1
0000000000000000: 00000002 00000000 00000000 0001 01 12350
";
    assert_eq!(names(list, 1000), [0, 1].map(|number| Name { uid: 1000, pid: 4711, number }));
}

#[test]
fn each_way_to_talk_nonsense_has_its_name() {
    let liar = Liar::new(0);
    assert_eq!(liar.word("dapl-counters 1\nprocess\t7\tx\nend\n"), "told");
    assert_eq!(liar.word("dapl-counters 1\nprocess\t7\tx\n"), "cut");
    assert_eq!(liar.word(""), "cut");
    assert_eq!(liar.word("dapl-counters 9\nend\n"), "version");
    assert_eq!(liar.word("HTTP/1.1 400 Bad Request\r\n"), "nonsense");
    assert_eq!(liar.word([0xFF; 4000]), "nonsense");
    assert_eq!(liar.word(vec![b'\n'; MOST + 1]), "too-much");
}

#[test]
fn who_is_mute_is_found_so_and_holds_nobody_up() {
    let (mute, honest) = (Liar::new(1), Liar::new(2));
    let _talker = honest.says(b"dapl-counters 1\nprocess\t7\tx\nend\n".to_vec());
    let found = ask(&[mute.name, honest.name], Instant::now() + LOOK, &mut ROOM.clone());
    assert!(matches!(found[0].told, Err(Trouble::Silent)), "the kernel takes the connection for it: {found:?}");
    assert_eq!(found[1].told.as_ref().map(|told| told.pid).ok(), Some(7), "{found:?}");
    // Nobody takes those that have asked out of its queue, which is full in the end.
    let more: Vec<_> = std::iter::repeat_with(|| connect(mute.name)).take(40).collect();
    assert!(more.iter().any(|one| matches!(one, Err(Trouble::Busy))), "{more:?}");
    assert!(matches!(mute.told(), Err(Trouble::Busy)));
}

#[test]
fn who_dies_with_our_question_in_its_queue_has_hung_up() {
    let Liar { name, listener } = Liar::new(3);
    let socket = connect(name).unwrap();
    drop(listener);
    let mut asked = [Asked { name, socket: Some(socket), told: Vec::new(), trouble: None }];
    listen(&mut asked, Instant::now() + PATIENCE, &mut ROOM.clone());
    let [asked] = asked;
    assert!(matches!(asked.found().told, Err(Trouble::Cut)));
}

#[test]
fn who_is_gone_is_none_and_for_who_is_late_there_is_no_time() {
    let liar = Liar::new(4);
    let late = ask(&[liar.name], Instant::now(), &mut ROOM.clone());
    assert!(matches!(late[0].told, Err(Trouble::Skipped)));
    let name = liar.name;
    drop(liar);
    assert!(ask(&[name], Instant::now() + LOOK, &mut ROOM.clone()).is_empty());
}

#[test]
fn who_bears_the_name_of_another_user_is_not_believed() {
    let uid = rustix::process::geteuid().as_raw() + 1;
    let name = Name { uid, pid: nobody(5), number: 0 };
    let listener = socket::listen(name).unwrap();
    assert!(ask(&[name], Instant::now() + LOOK, &mut ROOM.clone()).is_empty());
    drop(listener);
}

#[test]
fn all_together_tell_no_more_than_there_is_room_for() {
    let liars = [Liar::new(6), Liar::new(7)];
    let _talkers: Vec<_> =
        liars.iter().map(|liar| liar.says([&b"dapl-counters 1\nx\n"[..], &[b'x'; 900], b"\nend\n"].concat())).collect();
    let mut room = 1000;
    let found = ask(&liars.each_ref().map(|liar| liar.name), Instant::now() + LOOK, &mut room);
    let refused = found.iter().filter(|found| matches!(found.told, Err(Trouble::TooMuch))).count();
    assert_eq!((refused, found.len()), (1, 2), "{found:?}");
}
