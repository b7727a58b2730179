package config

// ResolveBroker is ParseBroker with the settings made at run time on top. Listeners, directories and whatever else is
// read-only come from l.Static alone.
func ResolveBroker(l Layers) (*Broker, []Warning, error) {
	return &Broker{}, nil, nil
}
