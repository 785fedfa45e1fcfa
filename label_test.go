package offpeak

import "testing"

func TestMatch(t *testing.T) {
	o := idle()
	o.Labels = map[string]string{"rack": "7", "gpu-room": "", "metered": "true"}
	for _, c := range []struct {
		text, why string
	}{
		{"rack", ""},
		{"!rack", "label: wants !rack, has rack=7"},
		{"rack=7", ""},
		{"rack=8", "label: wants rack=8, has rack=7"},
		{"rack!=8", ""},
		{"rack!=7", "label: wants rack!=7, has rack=7"},
		{"gpu-room", ""},
		{"!gpu-room", "label: wants !gpu-room, has gpu-room"},
		{"gpu-room!=x", ""},
		{"!metered", "label: wants !metered, has metered=true"},
		{"metered!=true", "label: wants metered!=true, has metered=true"},
		{"!quiet", ""},
		{"quiet", "label: wants quiet, has none"},
		{"quiet=1", "label: wants quiet=1, has none"},
		{"quiet!=1", ""},
		{"region", ""},
		{"region=fsn", ""},
		{"region!=fsn", "label: wants region!=fsn, has region=fsn"},
		{"a=b=c", "label: wants a=b=c, has none"},
		// What can't be read is never met; Validate refuses it.
		{"", "label: wants , has none"},
		{"=x", "label: wants =x, has none"},
	} {
		r := need()
		r.Match = []string{"rack", c.text}
		if why := r.Fit("acct_me", "process", o); why.String() != c.why {
			t.Errorf("%q: %q, want %q", c.text, why, c.why)
		}
		if r.Fits("acct_me", "process", &o) != (c.why == "") {
			t.Errorf("%q: Fits differs", c.text)
		}
	}
	nowhere := o
	nowhere.Region = ""
	r := need()
	r.Match = []string{"!region"}
	if !r.Fits("acct_me", "process", &nowhere) || r.Fits("acct_me", "process", &o) {
		t.Error("a node without region")
	}
}

func TestGuests(t *testing.T) {
	var nobody *Guests
	for _, c := range []struct {
		guests  *Guests
		account AccountID
		code    FitCode
	}{
		{nobody, "acct_me", FitOK},
		{&Guests{}, "acct_me", FitOK},
		{&Guests{Allow: []AccountID{"acct_me"}}, "acct_me", FitOK},
		{&Guests{Allow: []AccountID{"acct_me"}}, "acct_you", FitAccount},
		{&Guests{Deny: []AccountID{"acct_me"}}, "acct_me", FitAccount},
		{&Guests{Deny: []AccountID{"acct_me"}}, "acct_you", FitOK},
		{&Guests{Allow: []AccountID{"acct_me"}, Deny: []AccountID{"acct_me"}}, "acct_me", FitAccount},
		// A node always takes its own account's jobs.
		{&Guests{Allow: []AccountID{"acct_me"}, Deny: []AccountID{"acct_owner"}}, "acct_owner", FitOK},
	} {
		o := idle()
		o.Guests = c.guests
		if why := need().Fit(c.account, "process", o); why.Code != c.code {
			t.Errorf("%+v takes %s: %s", c.guests, c.account, why)
		}
	}
	// Being named is no more than being anybody where the driver is not shared.
	o := idle()
	o.Shared, o.Guests = nil, &Guests{Allow: []AccountID{"acct_me"}}
	if why := need().Fit("acct_me", "process", o); why.Code != FitStranger {
		t.Errorf("a guest without a shared driver: %s", why)
	}
	if err := (&Guests{Allow: []AccountID{"lab"}, Deny: make([]AccountID, maxGuests+1)}).Validate("allow", "deny"); err == nil {
		t.Error("took names that are no ids")
	}
	if err := nobody.Validate("allow", "deny"); err != nil {
		t.Error(err)
	}
}

func TestFitNamedNodes(t *testing.T) {
	for _, c := range []struct {
		nodes, not []NodeID
		accounts   []AccountID
		why        string
	}{
		{[]NodeID{"node_2", "node_1"}, nil, nil, ""},
		{[]NodeID{"node_2"}, nil, nil, "node: wants node_2, has node_1"},
		{nil, []NodeID{"node_2"}, nil, ""},
		{nil, []NodeID{"node_2", "node_1"}, nil, "node: wants none of node_2, node_1, has node_1"},
		{[]NodeID{"node_1"}, []NodeID{"node_1"}, nil, "node: wants node_1, none of node_1, has node_1"},
		{[]NodeID{"a", "b", "c", "d"}, nil, nil, "node: wants a, b, c, …, has node_1"},
		{nil, nil, []AccountID{"acct_x"}, ""},
		{nil, nil, []AccountID{"acct_x", "acct_owner"}, "owner: wants a node of another account, has acct_owner"},
	} {
		r := need()
		r.Nodes, r.NotNodes, r.NotAccounts = c.nodes, c.not, c.accounts
		if why := r.Fit("acct_me", "process", idle()); why.String() != c.why {
			t.Errorf("%v %v %v: %q", c.nodes, c.not, c.accounts, why)
		}
	}
}
