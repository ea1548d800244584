# `make demo`: a power cut and a lost drive. On two cores a fresh clone takes four minutes, most of it to build.
# `make test`: everything CI runs, but `make msrv`, in three quarters of an hour on two cores.
# The first needs nothing but Rust (https://rustup.rs) and a C linker, the second some programs of
# the distribution's for the guest tests, which it installs.

CARGO ?= cargo
# Where the simulator starts: new each time, so that every run looks at runs nobody has seen.
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d " "))
# How many seeds the simulator's share of `make test` is, with a fifth as many for volumes and for namespaces; sized to
# stay below five minutes.
SEEDS ?= 1500
# How many rules are broken, to see whether that is noticed, and how many lives have to notice it.
MUTANTS ?= 24
MUTANT_SEEDS ?= 1600

# How long each target is fuzzed by `make fuzz`.
FUZZ_SECONDS ?= 60
OLDEST_RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Where `make install` puts things.
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR := $(PREFIX)/bin
# Where cargo builds: as it says, or else the environment. Asked for once, and only if it is used.
BUILT = $(eval BUILT := $$(or $$(shell $$(CARGO) metadata --locked --no-deps --format-version 1 2>/dev/null | \
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'),$$(CARGO_TARGET_DIR),target))$(BUILT)
TARGET = $(BUILT)/release

.PHONY: demo test test-long lint deny msrv fuzz check simulate exhaustive mutants guest guest-packages bench lab man \
    install install-built uninstall

demo:
	$(CARGO) run --locked --release -p zoneraid -- demo

test: lint check simulate exhaustive mutants guest
	@echo "make test: everything passed (simulator and guest from seed $(SEED))"

test-long: test fuzz
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- exhaustive
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- mutants --from $(SEED)
	$(TARGET)/guest test --long --seed $(SEED)

# Licences and sources of what is used, as far as `make check` does not see to it: needs cargo-deny. The database of
# advisories is fetched from elsewhere; without a way there: make deny DENY='licenses bans sources'
DENY ?= advisories licenses bans sources
deny:
	$(CARGO) deny --locked check $(DENY)

# With the oldest Rust that Cargo.toml allows, which rustup fetches.
msrv:
	rustup toolchain install --profile minimal --no-self-update $(OLDEST_RUST)
	$(CARGO) +$(OLDEST_RUST) check --locked --workspace --target-dir target/msrv

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --quiet --workspace --no-deps
	@git log --format=%s @{upstream}.. 2>/dev/null | awk '!/^[a-z0-9 ,\/-]+: [a-z]/ || length > 72 \
	    { print "commit subject, not as in CONTRIBUTING.md: " $$0; bad = 1 } END { exit bad }'

check:
	$(CARGO) test --locked --workspace

simulate:
	@echo "simulator: $(SEEDS) seeds from $(SEED); again with: make simulate SEED=$(SEED) SEEDS=$(SEEDS)"
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- run --seeds $(SEEDS) --from $(SEED)
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- run --volume --seeds $$(($(SEEDS) / 5)) --from $(SEED)
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- run --namespaces --seeds $$(($(SEEDS) / 5)) --from $(SEED)

# Inputs from elsewhere, for longer than in `make check`.
fuzz:
	ZONERAID_FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --locked -p zoneraid --test fuzz -- --nocapture

# Without deviations from the default order, which find little more a minute: with one each, as part of test-long.
exhaustive:
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- exhaustive --delays 0

# Rules of the engine that are broken on purpose, each of which has to be noticed: here some of those that a few
# lives show, always the same, by lives alone. All of them, by all tests, are part of test-long; their score in
# the documents is renewed with `sim mutants --write-score docs/GUARANTEES.md`.
mutants:
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- mutants --sample $(MUTANTS) --seeds-most $(MUTANT_SEEDS)

guest: guest-packages
	$(CARGO) build --locked --quiet --release -p zoneraid -p zoneraid-guest
	$(TARGET)/guest test --seed $(SEED)

# Root rights are for apt-get alone; the guest itself needs none.
guest-packages:
	@$(CARGO) build --locked --quiet --release -p zoneraid-guest
	@packages=$$($(TARGET)/guest packages); [ -z "$$packages" ] || { \
	    sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	    echo "installing what the guest tests need: $$packages"; \
	    $$sudo apt-get update -q && \
	    $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$packages; }

bench:
	$(CARGO) bench --locked -p zoneraid --bench cost

lab:
	$(CARGO) run --locked --quiet --release -p zoneraid-lab -- report target/lab/index.html

man:
	$(CARGO) run --locked --quiet --release -p zoneraid -- man target/man
	@echo "manual pages are in target/man; look at one with: man -l target/man/zoneraid.8"

# What is installed, below DESTDIR.
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
RULES := $(DESTDIR)$(PREFIX)/lib/udev/rules.d
SHARE := $(DESTDIR)$(PREFIX)/share
MAN := $(SHARE)/man/man8
COMPLETIONS := $(SHARE)/bash-completion/completions/zoneraid $(SHARE)/zsh/site-functions/_zoneraid \
    $(SHARE)/fish/vendor_completions.d/zoneraid.fish

# As root, where the system is concerned; the build is left to whoever has cargo, and install-built takes what is built.
install:
	$(CARGO) build --locked --release -p zoneraid
	$(MAKE) install-built TARGET=$(TARGET)

# Without cargo, for packagers and for root: make install-built DESTDIR=... [TARGET=DIRECTORY-OF-THE-BINARY]
install-built:
	test -x $(TARGET)/zoneraid || { echo "$(TARGET)/zoneraid is not there: make install builds it" >&2; exit 1; }
	install -D -s -m 755 -t $(DESTDIR)$(BINDIR) $(TARGET)/zoneraid
	room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT && zoneraid=$(TARGET)/zoneraid && \
	    $$zoneraid man "$$room/man" && install -D -m 644 -t $(MAN) "$$room"/man/*.8 && \
	    $$zoneraid completions bash >"$$room/bash" && $$zoneraid completions zsh >"$$room/zsh" && \
	    $$zoneraid completions fish >"$$room/fish" && \
	    install -D -m 644 "$$room/bash" $(word 1,$(COMPLETIONS)) && \
	    install -D -m 644 "$$room/zsh" $(word 2,$(COMPLETIONS)) && \
	    install -D -m 644 "$$room/fish" $(word 3,$(COMPLETIONS)) && \
	    sed 's|@BINDIR@|$(BINDIR)|' dist/zoneraid@.service >"$$room/unit" && \
	    sed 's|@BINDIR@|$(BINDIR)|' dist/60-zoneraid.rules >"$$room/rules" && \
	    install -D -m 644 "$$room/unit" $(UNITS)/zoneraid@.service && \
	    install -D -m 644 "$$room/rules" $(RULES)/60-zoneraid.rules
	@echo "installed below $(DESTDIR)$(PREFIX); then: systemctl daemon-reload && udevadm control --reload"

# Arrays that run go on, and do not start again by themselves.
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/zoneraid $(MAN)/zoneraid.8 $(MAN)/zoneraid-*.8 $(COMPLETIONS)
	rm -f $(UNITS)/zoneraid@.service $(RULES)/60-zoneraid.rules
	@echo "removed from $(DESTDIR)$(PREFIX); then: systemctl daemon-reload && udevadm control --reload"
