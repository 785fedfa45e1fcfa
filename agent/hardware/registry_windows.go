package hardware

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/windows/registry"

	"offpeak"
)

// adapters reads Windows's list of display adapters.
func adapters(memory offpeak.Bytes) func(context.Context, forest) ([]found, []string, error) {
	return func(context.Context, forest) ([]found, []string, error) {
		const class = `SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}`
		root, err := registry.OpenKey(registry.LOCAL_MACHINE, class, registry.ENUMERATE_SUB_KEYS)
		if err != nil {
			return nil, nil, nil //nolint:nilerr // no adapter was ever here
		}
		defer root.Close()
		names, _ := root.ReadSubKeyNames(maxDevices)
		var list []adapter
		for _, name := range names {
			k, err := registry.OpenKey(registry.LOCAL_MACHINE, class+`\`+name, registry.QUERY_VALUE)
			if err != nil {
				continue
			}
			a := adapter{key: name}
			a.name, _, _ = k.GetStringValue("DriverDesc")
			a.match, _, _ = k.GetStringValue("MatchingDeviceId")
			a.version, _, _ = k.GetStringValue("DriverVersion")
			const size = "HardwareInformation.qwMemorySize"
			if a.memory, _, err = k.GetIntegerValue(size); err != nil {
				// Some drivers write it as bytes.
				if b, _, err := k.GetBinaryValue(size); err == nil && len(b) == 8 {
					a.memory = binary.LittleEndian.Uint64(b)
				}
			}
			k.Close()
			list = append(list, a)
		}
		all, warnings := parseAdapters(list, memory)
		return all, warnings, nil
	}
}
