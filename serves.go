package offpeak

// Serves says whether the device alone is what the request asks for: for those
// who keep nodes by their devices.
func (w *GPURequest) Serves(d *Device) bool { return w.serves(d) }
