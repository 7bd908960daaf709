# What the scripts of this folder share. Settings: /etc/cachetier/slurm.conf, lines of NAME=value.
CACHETIER_BIN=/opt/cachetier/bin/cachetier
CACHETIER_USER=cachetier                                  # the service's; root may not use the socket
CACHETIER_URL=unix:///run/cachetier/cachetier.sock
CACHETIER_UNIT=cachetier.service                          # empty: the prolog starts nothing
CACHETIER_READY_SECONDS=90                                # how long the prolog waits: a restart takes at most 70
CACHETIER_FLUSH_SECONDS=60                                # how long the epilog waits
if [ -r "${CACHETIER_SLURM_CONF:=/etc/cachetier/slurm.conf}" ]; then . "$CACHETIER_SLURM_CONF"; fi

# Run a verb as the service's user: `asked status --json`.
asked() {
    runuser -u "$CACHETIER_USER" -- env -i PATH="$PATH" HOME=/ CACHETIER_URL="$CACHETIER_URL" "$CACHETIER_BIN" "$@"
}

# Say something in the node's journal.
say() {
    logger --tag "${0##*/}" -- "job ${SLURM_JOB_ID:-?}: $*"
}
