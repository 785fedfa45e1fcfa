package hardware

import (
	"bufio"
	"os"
	"strings"
)

// pciID is what the kernel tells of a device's make, "0x1002" and so on.
type pciID struct{ vendor, device, revision string }

// nameFiles are where systems keep the names of devices: Mesa's for AMD's, which
// tells variants of one chip apart, and everybody's.
var nameFiles = []string{
	"/usr/share/libdrm/amdgpu.ids", "/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids",
}

// model is a device's name from the first of the files that has one, "" for none.
func model(files []string, id pciID) string {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		var found string
		if strings.HasSuffix(name, "amdgpu.ids") {
			found = amdName(lines, id)
		} else {
			found = pciName(lines, id)
		}
		f.Close()
		if found != "" {
			return found
		}
	}
	return ""
}

func hexDigits(s string) string { return strings.ToLower(strings.TrimPrefix(s, "0x")) }

// amdName reads lines like "744C,	C8,	AMD Radeon RX 7900 XTX".
func amdName(lines *bufio.Scanner, id pciID) string {
	if id.vendor != pciAMD {
		return ""
	}
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), ",", 3)
		if len(f) == 3 && hexDigits(strings.TrimSpace(f[0])) == hexDigits(id.device) && strings.TrimLeft(hexDigits(strings.TrimSpace(f[1])), "0") == strings.TrimLeft(hexDigits(id.revision), "0") {
			return printable(f[2])
		}
	}
	return ""
}

// pciName reads the list of PCI ids: a vendor's line begins with its number, the
// lines of its devices with a tab.
func pciName(lines *bufio.Scanner, id pciID) string {
	within := false
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t\t"):
		case !strings.HasPrefix(line, "\t"):
			within = strings.HasPrefix(line, hexDigits(id.vendor)+" ")
		case within:
			number, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			if number == hexDigits(id.device) {
				return printable(name)
			}
		}
	}
	return ""
}
