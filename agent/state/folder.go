// Package state is an agent's data folder: the node's identity and its key, the
// owner's orders, and a folder with a journal for every lease.
//
// It owns the layout of that folder and that each file in it is whole or
// absent, also on a full disk and after a crash at any line. It knows nothing of
// hubs and of what a job does. A Folder is plain data and may be used by any
// number of goroutines that write different files; Lock keeps a second agent
// away. It is tested by harming its files one by one.
package state

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/wire"
)

// Folder is the node's data folder. Every file in it is written beside its
// place and renamed, so it is whole or absent; one that is neither (a torn
// disk, a curious editor) is moved out of the way and treated as absent.
type Folder struct {
	path string
	log  *slog.Logger
	// spares are the folders that wait for their next lease; nil keeps none.
	spares *spares
}

// Orders is what the owner ordered locally: orders.json.
type Orders struct {
	Paused bool `json:"paused,omitempty"`
	// Until ends the pause, zero: not by itself.
	Until    time.Time `json:"until,omitzero"`
	Draining bool      `json:"draining,omitempty"`
}

// Journal is what a restarted agent needs of a lease: lease.json. It is
// written once, before the job is started; see Lease.Begin.
type Journal struct {
	Lease      offpeak.LeaseID `json:"lease"`
	Job        offpeak.JobID   `json:"job"`
	Attempt    offpeak.Attempt `json:"attempt"`
	Work       wire.Work       `json:"work"`
	Restored   int64           `json:"restored,omitempty"`
	Supervisor string          `json:"supervisor"`
}

// Open makes the folder if it is not there.
func Open(path string, log *slog.Logger) (Folder, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Folder{}, fmt.Errorf("find data folder: %w", err)
	}
	f := Folder{path: abs, log: log, spares: &spares{}}
	for _, dir := range []string{"", "leases", spareDir, "supervisors", "cache"} {
		if err := os.MkdirAll(f.At(dir), 0o700); err != nil {
			return Folder{}, fmt.Errorf("make data folder: %w", err)
		}
	}
	f.keepReserve()
	return f, nil
}

// Errors of a folder that can't be used. Their texts say what to do.
var (
	// ErrNotEnrolled: the data folder holds no identity.
	ErrNotEnrolled = errors.New("this machine is not enrolled: run `offpeak agent join TOKEN` with a token from your hub")
	// ErrIdentityLost: the key is there but not what it is enrolled under: joining
	// failed, or the file was damaged.
	ErrIdentityLost = errors.New("this machine has a node's key but is not enrolled with it: run `offpeak agent join TOKEN` with a fresh token; a node that was enrolled before is the same one again")
	// ErrSpoilt: the owner's rules were damaged.
	ErrSpoilt = errors.New("the file of your rules was damaged and is set aside as policy.json.bad: the defaults hold until you say them again with `offpeak agent policy set`")
	// ErrBusy: another agent uses the data folder.
	ErrBusy = errors.New("another agent uses this data folder: stop it, or choose another --data")
)

// SettingsFile is what the owner said of the machine when it joined, kept beside
// the identity by whoever reads the flags and forgotten with it.
const SettingsFile = "settings.yaml"

// The names inside a lease's folder and its job's.
const (
	// WorkDir is the job's own folder, its home.
	WorkDir = "work"
	// OutputDir is in it: what lies there is an output.
	OutputDir = "outputs"
	// OwnDir is in it as well: the notice and the job's temporary files.
	OwnDir = ".offpeak"
)

// At names a folder without looking at it.
func At(path string) Folder {
	return Folder{path: path, log: slog.New(slog.DiscardHandler)}
}

// reserveSize is set aside so that the node's own few files can be written on
// a disk that jobs have filled.
const reserveSize = 64 << 10

func (f Folder) keepReserve() {
	if info, err := os.Stat(f.At("reserve")); err == nil && info.Size() == reserveSize {
		return
	}
	// Without room there is none to set aside: the next start tries again.
	if err := os.WriteFile(f.At("reserve"), make([]byte, reserveSize), 0o600); err != nil {
		os.Remove(f.At("reserve"))
	}
}

// At is a path in the folder, the folder itself without parts.
func (f Folder) At(parts ...string) string {
	return filepath.Join(append([]string{f.path}, parts...)...)
}

// How often, and how far apart, Lock tries.
const (
	lockTries = 20
	lockPause = 10 * time.Millisecond
)

// Lock takes the folder for this process, or returns ErrBusy. The kernel lets
// go of it when the process is gone, however it went.
func (f Folder) Lock() (unlock func(), err error) {
	file, err := os.OpenFile(f.At("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for tries := 0; errors.Is(err, unix.EWOULDBLOCK) && tries < lockTries; tries++ {
		// A process that an agent which was killed had just forked holds it a
		// moment longer, until it is the supervisor that it is to be.
		time.Sleep(lockPause)
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	f.clearSpares()
	return func() {
		if f.spares != nil {
			f.spares.close()
		}
		// Closing alone leaves it to what was just forked and has not closed it yet.
		_ = unix.Flock(int(file.Fd()), unix.LOCK_UN)
		file.Close()
	}, nil
}

// write replaces a file in one step. A durable one survives the loss of power;
// one that only describes living processes need not, they don't survive it
// either.
func (f Folder) write(name string, v any, durable bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return f.writeBytes(name, append(data, '\n'), durable)
}

func (f Folder) writeBytes(name string, data []byte, durable bool) error {
	err := f.replace(name, data, durable)
	if durable && errors.Is(err, unix.ENOSPC) && os.Remove(f.At("reserve")) == nil {
		f.log.Warn("the disk is full: using what was set aside for the node's own state")
		err = f.replace(name, data, durable)
	}
	return err
}

func (f Folder) replace(name string, data []byte, durable bool) (err error) {
	path := f.At(name)
	tmp, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = tmp.Write(data)
	if err == nil && durable {
		err = tmp.Sync()
	}
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil && durable {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(path + ".tmp")
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// read fills v from a file that check accepts. It returns fs.ErrNotExist both
// for a file that is absent and for one that was damaged and is set aside.
func (f Folder) read(name string, v any, check func() bool) error {
	err := f.load(name, v)
	if errors.Is(err, errDamaged) || err == nil && !check() {
		return f.quarantine(name)
	}
	return err
}

var errDamaged = errors.New("damaged")

func (f Folder) load(name string, v any) error {
	data, err := f.readFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// readFile reads a file whole; one that is none is damaged.
func (f Folder) readFile(name string) ([]byte, error) {
	dir, base := filepath.Split(name)
	fd, err := f.open(strings.FieldsFunc(dir, func(r rune) bool { return r == filepath.Separator })...)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	file, _, err := openRegular(fd, base, unix.O_RDONLY)
	if errors.Is(err, ErrNotPlain) {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, mostRead))
}

func (f Folder) quarantine(name string) error {
	bad := f.At(name) + ".bad"
	f.log.Warn("state file is damaged; it is set aside", "file", f.At(name), "as", bad)
	if err := os.Rename(f.At(name), bad); err != nil {
		return fmt.Errorf("set aside %s: %w", name, err)
	}
	return fmt.Errorf("%s was damaged: %w", name, fs.ErrNotExist)
}

// Identity reads who this node is: ErrNotEnrolled or ErrIdentityLost if that
// is not known.
func (f Folder) Identity() (id link.Identity, key ed25519.PrivateKey, err error) {
	key, keyErr := f.key()
	err = f.read("node.json", &id, func() bool { return id.Node != "" && len(id.Hubs) > 0 })
	switch {
	case err == nil && keyErr == nil:
		return id, key, nil
	case err == nil && errors.Is(keyErr, fs.ErrNotExist):
		return link.Identity{}, nil, fmt.Errorf("the node's key is gone or damaged, and with it the right to be node %s: run `offpeak agent leave`, then `offpeak agent join TOKEN`", id.Name)
	case errors.Is(err, fs.ErrNotExist) && keyErr == nil:
		return link.Identity{}, nil, ErrIdentityLost
	case errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return link.Identity{}, nil, ErrNotEnrolled
	}
	return link.Identity{}, nil, fmt.Errorf("read identity: %w", errors.Join(err, keyErr))
}

// key reads the node's key; the file holds its 32-byte seed in hex.
func (f Folder) key() (ed25519.PrivateKey, error) {
	data, err := f.readFile("node.key")
	if err != nil {
		return nil, err
	}
	var seed []byte
	if _, err := fmt.Sscanf(strings.TrimSpace(string(data)), "%x", &seed); err != nil || len(seed) != ed25519.SeedSize {
		return nil, f.quarantine("node.key")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// MakeKey returns the node's key, a new one if there is none.
func (f Folder) MakeKey(random io.Reader) (ed25519.PrivateKey, error) {
	key, err := f.key()
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, seed); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := f.writeBytes("node.key", fmt.Appendf(nil, "%x\n", seed), true); err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// SaveIdentity writes down who this node is.
func (f Folder) SaveIdentity(id link.Identity) error { return f.write("node.json", id, true) }

// SaveOrders writes down what the owner ordered.
func (f Folder) SaveOrders(o Orders) error { return f.write("orders.json", o, true) }

// Orders reads what the owner ordered; a file that is damaged orders nothing.
func (f Folder) Orders() (o Orders) {
	if err := f.read("orders.json", &o, func() bool { return true }); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("read the owner's orders", "error", err)
		}
		return Orders{}
	}
	return o
}

// SaveEnded writes down which jobs ended, for people; a crash may lose it.
func (f Folder) SaveEnded(list any) error { return f.write("ended.json", list, false) }

// Ended reads what SaveEnded wrote.
func (f Folder) Ended(list any) error { return f.read("ended.json", list, func() bool { return true }) }

// SavePolicy writes down the owner's rules.
func (f Folder) SavePolicy(p any) error { return f.write("policy.json", p, true) }

// Policy reads the owner's rules into p where check accepts them. It returns
// fs.ErrNotExist for a file that is absent and ErrSpoilt for one that was damaged and
// is set aside, now or before, with none in its place.
func (f Folder) Policy(p any, check func() bool) error {
	err := f.read("policy.json", p, check)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, gone := os.Stat(f.At("policy.json.bad")); gone == nil {
		return ErrSpoilt
	}
	return err
}

// Journals reads the journals of leases that were started. A lease folder
// without one is removed: nothing was started in it, or nobody can tell what.
func (f Folder) Journals() ([]Journal, error) {
	entries, err := os.ReadDir(f.At("leases"))
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var out []Journal
	for _, e := range entries {
		var j Journal
		name := filepath.Join("leases", e.Name(), journal)
		data, err := f.readFile(name)
		switch {
		case err == nil && !begun(data), errors.Is(err, fs.ErrNotExist):
			// Settled, or never begun.
		case json.Unmarshal(data, &j) == nil && string(j.Lease) == e.Name() && j.Supervisor != "" && filepath.IsLocal(j.Supervisor):
			out = append(out, j)
			continue
		default:
			f.log.Warn("journal is damaged; its lease is given up", "file", f.At(name), "error", err)
		}
		f.Drop(offpeak.LeaseID(e.Name()))
	}
	return out, nil
}

// Drop removes a lease's folder, whoever holds it. It goes through an os.Root and so never
// leaves the data folder, whatever a job put there.
func (f Folder) Drop(id offpeak.LeaseID) {
	if err := f.remove("leases", string(id)); err != nil {
		f.log.Warn("remove lease folder", "lease", id, "error", err)
	}
}

func (f Folder) remove(dir, name string) error {
	root, err := os.OpenRoot(f.At(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.RemoveAll(name)
	if errors.Is(err, fs.ErrPermission) {
		// A job may take away its own folders' write bits: give them back.
		_ = fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				_ = root.Chmod(p, 0o700)
			}
			return nil
		})
		err = root.RemoveAll(name)
	}
	return err
}

// ValidID says that an id from the network may name a folder.
func ValidID[T ~string](id T) bool {
	return id != "" && len(id) <= 128 && filepath.IsLocal(string(id)) && !strings.ContainsAny(string(id), `/\`+"\x00") && id != "."
}

// Peek reads the journals that are whole and touches nothing.
func (f Folder) Peek() ([]Journal, error) {
	entries, err := os.ReadDir(f.At("leases"))
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var out []Journal
	for _, e := range entries {
		var j Journal
		if f.load("leases/"+e.Name()+"/"+journal, &j) == nil {
			out = append(out, j)
		}
	}
	return out, nil
}

// Socket returns a path to the control socket that is short enough for the
// kernel, however deep the data folder lies.
func (f Folder) Socket() (path string, done func(), err error) {
	const longest = 100
	if path = f.At("agent.sock"); len(path) <= longest {
		return path, func() {}, nil
	}
	dir, err := os.Open(f.path)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/agent.sock", dir.Fd()), func() { dir.Close() }, nil
}

// Forget removes the identity.
func (f Folder) Forget() error {
	var errs []error
	for _, name := range []string{"node.json", "node.key", "orders.json", SettingsFile} {
		if err := os.Remove(f.At(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove identity: %w", err)
	}
	return nil
}
