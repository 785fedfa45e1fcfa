// Package agent is the device side of the grid: it enrols a machine as a node,
// keeps its session, and makes what the hub says the node should hold come
// true: fetch inputs, restore, start, watch, ship logs and checkpoints, report.
//
// It decides on the device what to do next; the rooms below it do one thing
// each: state the data folder, link the calls to hubs, transfer logs, checkpoints
// and outputs, warm the idle supervisors, supervisor one job's process tree. It
// sees the hub through package wire alone and a job through its supervisor
// alone: it decides nothing about matching, money or other nodes, and it never
// listens on the network.
//
// What to do next is decided in one place: picture.step is a pure function from
// (clock, event) to effects. Around it stand thin loops, one goroutine each:
// heartbeats, the stream of pushes, the outbox of reports, the pool of warm
// supervisors, the inventory, the control socket, and one attempt for every
// lease. Run owns them all and ends them all. Any number of goroutines may post
// events; effects never block.
//
// Three rules keep a job and its agent apart. A job runs under its supervisor,
// so that an agent may die, or be replaced, at any line of this package: the
// next one adopts what lives. The lease's deadline is counted from the moment
// the last acknowledged heartbeat was sent, on a clock that counts suspended
// time. Everything that is said to the hub is repeatable.
//
// It is tested by tables over step, and by whole agents against a hub that
// speaks wire over httptest and loses, delays and repeats what it is told.
package agent
