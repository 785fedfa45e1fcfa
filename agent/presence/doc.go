// Package presence says whether a node may work now: what the owner's rules make
// of the owner's return, of programs that want the machine for themselves, of
// power, heat, the network and the clock on the wall.
//
// It owns the Policy, the sources that read the machine (one file each) and the
// decision. Decider.Step is pure: the same observations give the same verdicts.
// It knows nothing of jobs, leases and hubs: what becomes of running jobs is the
// agent's to decide, whose own orders (pause, drain) stand above any verdict.
//
// # Precedence
//
// A verdict allows what the strictest rule allows. It gives the reason of the
// first rule that is as strict, in this order, which puts what lasts before what
// comes and goes, so that the reason seldom changes:
//
//  1. sleep: the machine is going to sleep
//  2. hours: the owner's hours are closed
//  3. input: the owner is at the machine
//  4. apps, 5. full screen: a program has the machine to itself
//  6. battery
//  7. heat
//  8. network: it is metered
//  9. gpu: other programs use it; jobs without a GPU go on
//
// # What can't be read
//
// A source that does not answer within Bound, or says nothing of use, is named in
// Verdict.Unknown, and after Grace, in which its last word is believed, a default
// applies:
//
//   - input: a machine without any display and session is a server, whose owner
//     counts as away. A display that is there but can't be read may hide its owner,
//     who counts as present unless Policy.IfInputUnknown says away.
//   - battery: one that is there but can't be read counts as in use.
//   - everything else counts as nothing to worry about: no program runs, the
//     devices are cool and free, the network is not metered.
//
// Where several sources see input the latest input counts. The session's idle
// hint, which desktops set or don't, is asked only where nothing better answers.
//
// # Why no library for X11
//
// jezek/xgb dials displays itself and without a bound, so that one that accepts and
// never answers costs a goroutine and a socket for every try; on a connection that
// it is handed it finds no authority. Three requests are all that is needed here.
//
// # Concurrency and tests
//
// A Watcher's Run owns one goroutine a source and wakes all of them on one timer.
// A source that hangs is not asked again before it has answered. Policies, verdicts
// and observations are plain values. The decision is tested by tables and
// properties; the sources against a real X server, a private bus with services of
// the test's own, made-up trees of /sys and captured output.
package presence
