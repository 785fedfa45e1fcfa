package agent

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

// folder is the node's data folder. Every file in it is written beside its
// place and renamed, so it is whole or absent; one that is neither (a torn
// disk, a curious editor) is moved out of the way and treated as absent.
type folder struct {
	path string
	log  *slog.Logger
}

// orders is what the owner ordered locally: orders.json.
type orders struct {
	Paused bool `json:"paused,omitempty"`
	// Until ends the pause, zero: not by itself.
	Until    time.Time `json:"until,omitzero"`
	Draining bool      `json:"draining,omitempty"`
}

// journal is what a restarted agent needs of a lease: lease.json. It is
// written once, before the job is started.
type journal struct {
	Lease      offpeak.LeaseID `json:"lease"`
	Job        offpeak.JobID   `json:"job"`
	Attempt    offpeak.Attempt `json:"attempt"`
	Work       wire.Work       `json:"work"`
	Restored   int64           `json:"restored,omitempty"`
	Supervisor string          `json:"supervisor"`
}

func openFolder(path string, log *slog.Logger) (folder, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return folder{}, fmt.Errorf("find data folder: %w", err)
	}
	f := folder{path: abs, log: log}
	for _, dir := range []string{"", "leases", "supervisors", "cache"} {
		if err := os.MkdirAll(f.at(dir), 0o700); err != nil {
			return folder{}, fmt.Errorf("make data folder: %w", err)
		}
	}
	f.keepReserve()
	return f, nil
}

// reserveSize is set aside so that the node's own few files can be written on
// a disk that jobs have filled.
const reserveSize = 64 << 10

func (f folder) keepReserve() {
	if info, err := os.Stat(f.at("reserve")); err == nil && info.Size() == reserveSize {
		return
	}
	// Without room there is none to set aside: the next start tries again.
	if err := os.WriteFile(f.at("reserve"), make([]byte, reserveSize), 0o600); err != nil {
		os.Remove(f.at("reserve"))
	}
}

func (f folder) at(parts ...string) string {
	return filepath.Join(append([]string{f.path}, parts...)...)
}

// lock takes the folder for this process, or returns ErrBusy. The kernel lets
// go of it when the process is gone, however it went.
func (f folder) lock() (unlock func(), err error) {
	file, err := os.OpenFile(f.at("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	return func() { file.Close() }, nil
}

// write replaces a file in one step. A durable one survives the loss of power;
// one that only describes living processes need not, they don't survive it
// either.
func (f folder) write(name string, v any, durable bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return f.writeBytes(name, append(data, '\n'), durable)
}

func (f folder) writeBytes(name string, data []byte, durable bool) error {
	err := f.replace(name, data, durable)
	if durable && errors.Is(err, unix.ENOSPC) && os.Remove(f.at("reserve")) == nil {
		f.log.Warn("the disk is full: using what was set aside for the node's own state")
		err = f.replace(name, data, durable)
	}
	return err
}

func (f folder) replace(name string, data []byte, durable bool) (err error) {
	path := f.at(name)
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
func (f folder) read(name string, v any, check func() bool) error {
	err := f.load(name, v)
	if errors.Is(err, errDamaged) || err == nil && !check() {
		return f.quarantine(name)
	}
	return err
}

var errDamaged = errors.New("damaged")

func (f folder) load(name string, v any) error {
	data, err := os.ReadFile(f.at(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

func (f folder) quarantine(name string) error {
	bad := f.at(name) + ".bad"
	f.log.Warn("state file is damaged; it is set aside", "file", f.at(name), "as", bad)
	if err := os.Rename(f.at(name), bad); err != nil {
		return fmt.Errorf("set aside %s: %w", name, err)
	}
	return fmt.Errorf("%s was damaged: %w", name, fs.ErrNotExist)
}

// identity reads who this node is: ErrNotEnrolled or ErrIdentityLost if that
// is not known.
func (f folder) identity() (id link.Identity, key ed25519.PrivateKey, err error) {
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
func (f folder) key() (ed25519.PrivateKey, error) {
	data, err := os.ReadFile(f.at("node.key"))
	if err != nil {
		return nil, err
	}
	var seed []byte
	if _, err := fmt.Sscanf(strings.TrimSpace(string(data)), "%x", &seed); err != nil || len(seed) != ed25519.SeedSize {
		return nil, f.quarantine("node.key")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// makeKey returns the node's key, a new one if there is none.
func (f folder) makeKey(random io.Reader) (ed25519.PrivateKey, error) {
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

func (f folder) orders() (o orders) {
	if err := f.read("orders.json", &o, func() bool { return true }); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("read the owner's orders", "error", err)
		}
		return orders{}
	}
	return o
}

// journals reads the journals of leases that were started. A lease folder
// without one is removed: nothing was started in it, or nobody can tell what.
func (f folder) journals() ([]journal, error) {
	entries, err := os.ReadDir(f.at("leases"))
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var out []journal
	for _, e := range entries {
		var j journal
		name := filepath.Join("leases", e.Name(), "lease.json")
		err := f.read(name, &j, func() bool {
			return string(j.Lease) == e.Name() && j.Supervisor != "" && filepath.IsLocal(j.Supervisor)
		})
		if err != nil {
			f.drop(offpeak.LeaseID(e.Name()))
			continue
		}
		out = append(out, j)
	}
	return out, nil
}

func (f folder) lease(id offpeak.LeaseID) string { return f.at("leases", string(id)) }

// drop removes a lease's folder. It goes through an os.Root and so never
// leaves the data folder, whatever a job put there.
func (f folder) drop(id offpeak.LeaseID) {
	if err := f.remove("leases", string(id)); err != nil {
		f.log.Warn("remove lease folder", "lease", id, "error", err)
	}
}

func (f folder) remove(dir, name string) error {
	root, err := os.OpenRoot(f.at(dir))
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

// validID says that an id from the network may name a folder.
func validID[T ~string](id T) bool {
	return id != "" && len(id) <= 128 && filepath.IsLocal(string(id)) && !strings.ContainsAny(string(id), `/\`+"\x00") && id != "."
}
