# `make demo`: demonstrates power cuts and losses of drives. On two cores a fresh clone takes six to ten minutes, nearly
# all of them for the build. It needs only Rust (https://rustup.rs) and a C linker.
# `make test`: all CI jobs except `make msrv`, in a good hour on two cores. The guest tests need some
# programs of the distribution, which this installs.

CARGO ?= cargo
# First seed of the simulator; random, so that every run tests new seeds.
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d " "))
# Number of simulator seeds in `make test`; a fifth of it is added for volumes and for namespaces each. Chosen to take
# less than five minutes.
SEEDS ?= 1000
# Number of mutants (single-line changes of the engine) that are tested, and of seeds that have to detect each.
MUTANTS ?= 24
MUTANT_SEEDS ?= 1600

# Seconds for each target of `make fuzz`.
FUZZ_SECONDS ?= 60
OLDEST_RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Installation directories.
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR := $(PREFIX)/bin
# Cargo's target directory: from `cargo metadata`, or else from the environment. Evaluated once, and only if it is used.
BUILT = $(eval BUILT := $$(or $$(shell $$(CARGO) metadata --locked --no-deps --format-version 1 2>/dev/null | \
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'),$$(CARGO_TARGET_DIR),target))$(BUILT)
TARGET = $(BUILT)/release

.PHONY: demo test test-long lint deny msrv fuzz check simulate exhaustive mutants guest guest-packages bench lab man \
    install install-built uninstall

demo:
	$(CARGO) run --locked --release -p zoneraid -- demo

# Link-time optimization takes minutes, and finds nothing.
test: export CARGO_PROFILE_RELEASE_LTO = off
test: lint check simulate exhaustive guest
	@echo "make test: everything passed (simulator and guest from seed $(SEED))"

test-long: test fuzz
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- exhaustive
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- mutants --from $(SEED)
	$(TARGET)/guest test --long --seed $(SEED)

# Checks licences and sources of dependencies beyond `make check`; needs cargo-deny. It downloads the advisory database;
# without network access: make deny DENY='licenses bans sources'
DENY ?= advisories licenses bans sources
deny:
	$(CARGO) deny --locked check $(DENY)

# Checks with the minimum Rust version of Cargo.toml, which rustup downloads.
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
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- run --level single --seeds $$(($(SEEDS) / 5)) --from $(SEED)
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- run --silent --seeds $$(($(SEEDS) / 5)) --from $(SEED)

# Fuzzes external inputs, for longer than `make check` does.
fuzz:
	ZONERAID_FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --locked -p zoneraid --test fuzz -- --nocapture

# No deviations from the default order, since they find little more per minute. test-long includes one deviation each.
exhaustive:
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- exhaustive --delays 0

# Mutants of the engine, each of which the tests have to detect: here a fixed sample of those that a few lives detect,
# with lives as the only tests. They measure the tests, not the product, so test-long plays them: all of them, with all
# tests. To update their score in the documents run `sim mutants --write-score docs/GUARANTEES.md`.
mutants:
	$(CARGO) run --locked --quiet --release -p zoneraid-sim -- mutants --sample $(MUTANTS) --seeds-most $(MUTANT_SEEDS)

guest: guest-packages
	$(CARGO) build --locked --quiet --release -p zoneraid -p zoneraid-guest
	$(TARGET)/guest test --seed $(SEED)

# Only apt-get needs root privileges; the guest itself needs none.
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

# Installed files, below DESTDIR.
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
RULES := $(DESTDIR)$(PREFIX)/lib/udev/rules.d
SHARE := $(DESTDIR)$(PREFIX)/share
MAN := $(SHARE)/man/man8
COMPLETIONS := $(SHARE)/bash-completion/completions/zoneraid $(SHARE)/zsh/site-functions/_zoneraid \
    $(SHARE)/fish/vendor_completions.d/zoneraid.fish

# Needs root for system directories. Cargo builds as the current user; install-built installs an existing build.
install:
	$(CARGO) build --locked --release -p zoneraid
	$(MAKE) install-built TARGET=$(TARGET)

# Does not need cargo, for packagers and root: make install-built DESTDIR=... [TARGET=DIRECTORY-OF-THE-BINARY]
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
	    sed 's|@BINDIR@|$(BINDIR)|' dist/zoneraid-scrub.service >"$$room/scrub" && \
	    install -D -m 644 "$$room/scrub" $(UNITS)/zoneraid-scrub.service && \
	    install -D -m 644 dist/zoneraid-scrub.timer $(UNITS)/zoneraid-scrub.timer && \
	    install -D -m 644 "$$room/rules" $(RULES)/60-zoneraid.rules
	@echo "installed below $(DESTDIR)$(PREFIX); then: systemctl daemon-reload && udevadm control --reload"

# Running arrays keep running, but are not started automatically any more.
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/zoneraid $(MAN)/zoneraid.8 $(MAN)/zoneraid-*.8 $(COMPLETIONS)
	rm -f $(UNITS)/zoneraid@.service $(UNITS)/zoneraid-scrub.service $(UNITS)/zoneraid-scrub.timer $(RULES)/60-zoneraid.rules
	@echo "removed from $(DESTDIR)$(PREFIX); then: systemctl daemon-reload && udevadm control --reload"
