"""The catalog's tables, and how a catalog of the version before comes to have them.

``shards.body`` of small shards lies in a table of its own so that walking the shards never reads
bodies. ``row_digest`` covers a row's identity: SQLite stores a flipped bit as readily as a sound
one. Most shards are evicted, sooner or later; the partial indexes find the others without a walk
over a million of those.

``here`` says whether a shard's bytes are on this node. A row of ``drains`` is a copy of a shard at
a remote, or on the way there: a *verified* one is there; a *lost* one was, and is not any more.
``owed_shards`` are those that replicas have still to get.

``leftovers`` are shards that are gone from here, while a remote may still hold an unfinished upload
of them, which the drain aborts when it sweeps up after the save, or an object: only one of these is
ever replaced there.

A row of ``copies`` says what a save has reached at one remote, the durable one among them, and
``copied_parts`` which parts of ranks are there. A save that begins here has a row for every remote
from its first instant, so that none is missed; ``due`` marks those with work left. ``saves`` itself
has what this node decides. The state of the copy at the durable remote follows that of its save,
as the durable remote decides; ``saves_at`` shows a save with what it has reached at a remote. What
another node saw a save replace is in ``replaces``, as ids with a space between.

``replaced_uploads`` are unfinished uploads of shards that were replaced here: the completion of one
may be under way still, and would overwrite what replaced it.

A pin is on a step, whichever save of it readers see, and goes with the step.

An object of the S3 door has a row in ``objects`` for each of its versions that the bucket does not
show yet, and for the newest. ``follows`` says after which others it may be shown, ``epoch`` and
``waits`` what it has to do with other nodes (docs/design/0030-objects.md). An upload that was
completed keeps its row for a while, with the ``version`` that it became and a digest of the parts
that were ``listed``: whoever did not hear that it is complete asks again.

``taken_back`` names saves whose files fsck took back under a catalog that knew nothing of them: of
those it cannot be said that a rank never sealed.
"""

from __future__ import annotations

# A new catalog starts with it.
SCHEMA = """
    CREATE TABLE store (
        id TEXT NOT NULL,
        created_at REAL NOT NULL
    ) STRICT;

    CREATE TABLE saves (
        number INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        save_id TEXT NOT NULL,
        state TEXT NOT NULL,
        world_size INTEGER NOT NULL,
        overwrite INTEGER NOT NULL,
        started_at REAL NOT NULL,
        local_only_at REAL,
        wanted INTEGER NOT NULL DEFAULT 0,
        replaces TEXT NOT NULL DEFAULT '',
        UNIQUE (run, step, save_id)
    ) STRICT;
    -- What a look at the node needs of the saves, whose number only grows: see `figures`.
    CREATE INDEX saves_of_run ON saves (run, started_at) WHERE state <> 'deleted';
    CREATE INDEX published_saves ON saves (run, started_at, step) WHERE state = 'published';
    CREATE INDEX open_saves ON saves (number) WHERE state IN ('open', 'local_only');
    CREATE INDEX local_only_saves ON saves (state) WHERE local_only_at IS NOT NULL;
    CREATE INDEX mount_saves ON saves (run) WHERE state = 'objects';

    CREATE TABLE parts (
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        rank INTEGER NOT NULL,
        state TEXT NOT NULL,
        ranks_on_node INTEGER,
        sealed_at REAL,
        follows INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (save, rank)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE shards (
        version INTEGER PRIMARY KEY AUTOINCREMENT,
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        name TEXT NOT NULL,
        rank INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL,
        digest BLOB NOT NULL,
        block_digests BLOB NOT NULL,
        element_size INTEGER NOT NULL,
        file_id TEXT,
        inline INTEGER NOT NULL,
        state TEXT NOT NULL,
        committed_at REAL NOT NULL,
        row_digest BLOB NOT NULL,
        here INTEGER GENERATED ALWAYS AS (file_id IS NOT NULL OR inline) VIRTUAL,
        UNIQUE (save, name)
    ) STRICT;
    CREATE INDEX dirty_shards ON shards (save, version, rank, size_bytes) WHERE state = 'dirty';
    CREATE INDEX quarantined_shards ON shards (save, rank) WHERE state = 'quarantined';
    CREATE INDEX evictable_shards ON shards (save, version, size_bytes)
        WHERE state = 'clean' AND here;

    CREATE TABLE bodies (
        version INTEGER PRIMARY KEY REFERENCES shards (version) ON DELETE CASCADE,
        body BLOB NOT NULL
    ) STRICT;

    CREATE TABLE drains (
        version INTEGER NOT NULL REFERENCES shards (version) ON DELETE CASCADE,
        remote TEXT NOT NULL,
        upload_id TEXT,
        part_bytes INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        verified_at REAL,
        codec TEXT NOT NULL DEFAULT 'raw',
        element_size INTEGER NOT NULL DEFAULT 0,
        stored_bytes INTEGER,
        stored_digest BLOB,
        frames BLOB,
        pack TEXT,
        pack_start INTEGER,
        pack_bytes INTEGER,
        pack_digest BLOB,
        PRIMARY KEY (version, remote)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX packed_drains ON drains (pack, remote) WHERE pack IS NOT NULL;
    -- What a remote held and lost: see `copies`.
    CREATE INDEX lost_drains ON drains (remote, version)
        WHERE stored_bytes IS NOT NULL AND verified_at IS NULL;
    CREATE VIEW verified_copies AS SELECT * FROM drains WHERE verified_at IS NOT NULL;
    CREATE VIEW lost_copies AS SELECT * FROM drains
        WHERE stored_bytes IS NOT NULL AND verified_at IS NULL;

    CREATE TABLE uploaded_parts (
        version INTEGER NOT NULL,
        remote TEXT NOT NULL,
        number INTEGER NOT NULL,
        etag TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        digest BLOB NOT NULL,
        raw_start INTEGER NOT NULL,
        raw_bytes INTEGER NOT NULL,
        frames BLOB NOT NULL,
        PRIMARY KEY (version, remote, number),
        FOREIGN KEY (version, remote) REFERENCES drains (version, remote) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE replicas (
        name TEXT PRIMARY KEY,
        required INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE copies (
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        remote TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'open',
        location TEXT,
        published_at REAL,
        due INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (save, remote)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE copied_parts (
        save INTEGER NOT NULL,
        remote TEXT NOT NULL,
        rank INTEGER NOT NULL,
        PRIMARY KEY (save, remote, rank),
        FOREIGN KEY (save, remote) REFERENCES copies (save, remote) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE leftovers (
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (save, name, version)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE replaced_uploads (
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        name TEXT NOT NULL,
        remote TEXT NOT NULL,
        upload_id TEXT NOT NULL,
        PRIMARY KEY (save, name, remote, upload_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER upload_is_replaced BEFORE DELETE ON shards
        WHEN EXISTS (SELECT 1 FROM saves WHERE number = OLD.save
                     AND state IN ('open', 'local_only'))
        BEGIN INSERT OR IGNORE INTO replaced_uploads
              SELECT OLD.save, OLD.name, remote, upload_id FROM drains
              WHERE version = OLD.version AND upload_id IS NOT NULL; END;

    CREATE TABLE incidents (
        number INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        code TEXT NOT NULL,
        message TEXT NOT NULL,
        hint TEXT NOT NULL,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        name TEXT,
        rank INTEGER
    ) STRICT;

    CREATE TABLE pins (
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        pinned_at REAL NOT NULL,
        PRIMARY KEY (run, step)
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER step_leaves AFTER UPDATE OF state ON saves
        WHEN NEW.state = 'deleted'
        BEGIN DELETE FROM pins WHERE run = NEW.run AND step = NEW.step AND NOT EXISTS (
              SELECT 1 FROM saves WHERE run = NEW.run AND step = NEW.step
              AND state NOT IN ('superseded', 'refused', 'deleted')); END;

    CREATE TABLE taken_back (
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        save_id TEXT NOT NULL,
        PRIMARY KEY (run, step, save_id)
    ) STRICT, WITHOUT ROWID;

    -- How much `saves` and `notes` forgot, of what figures count for ever.
    CREATE TABLE pruned (
        kind TEXT PRIMARY KEY,
        number INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    -- Claims on the store id: see `notes`.
    CREATE TABLE store_claims (
        remote TEXT PRIMARY KEY,
        epoch TEXT NOT NULL,
        nonce TEXT NOT NULL,
        before TEXT NOT NULL,
        noticed_at REAL
    ) STRICT, WITHOUT ROWID;

    -- Objects of the S3 door: see `model.objects`. Their pieces are shards of the mount's save.
    CREATE TABLE objects (
        version INTEGER PRIMARY KEY AUTOINCREMENT,
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        key TEXT NOT NULL,
        deleted INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL,
        digest BLOB NOT NULL,
        etag TEXT NOT NULL,
        head TEXT NOT NULL,
        part_sizes TEXT NOT NULL,
        committed_at REAL NOT NULL,
        follows INTEGER NOT NULL,
        state TEXT NOT NULL,
        base TEXT,
        remote_etag TEXT,
        epoch TEXT,
        waits TEXT,
        row_digest BLOB NOT NULL,
        acknowledged_at REAL,
        conditional INTEGER NOT NULL DEFAULT 0,
        stamped INTEGER,
        request INTEGER
    ) STRICT;
    CREATE INDEX object_keys ON objects (save, key, version);
    CREATE INDEX unshown_objects ON objects (save, version, follows) WHERE state <> 'clean';
    CREATE INDEX unshown_keys ON objects (save, key) WHERE state <> 'clean';
    CREATE INDEX object_deletions ON objects (request) WHERE request IS NOT NULL;
    CREATE INDEX object_conflicts ON objects (save) WHERE state = 'conflict';

    CREATE TABLE object_uploads (
        id TEXT PRIMARY KEY,
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        key TEXT NOT NULL,
        head TEXT NOT NULL,
        owner TEXT NOT NULL,
        begun_at REAL NOT NULL,
        version INTEGER,
        etag TEXT,
        listed BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX object_upload_keys ON object_uploads (save, version, key, id);
    CREATE INDEX object_upload_ages ON object_uploads (begun_at);

    CREATE TABLE object_upload_parts (
        upload TEXT NOT NULL REFERENCES object_uploads (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        version INTEGER NOT NULL REFERENCES shards (version) ON DELETE CASCADE,
        etag TEXT NOT NULL,
        checksums TEXT NOT NULL,
        put_at REAL NOT NULL,
        PRIMARY KEY (upload, number)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX object_upload_part_shards ON object_upload_parts (version);

    CREATE TABLE order_notes (
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        epoch TEXT NOT NULL,
        opened_at REAL NOT NULL,
        written INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (save, epoch)
    ) STRICT, WITHOUT ROWID;

    -- Which of two writers of a key is newer: see `model.superseding`.
    CREATE TABLE superseded_objects (
        version INTEGER PRIMARY KEY,
        save INTEGER NOT NULL REFERENCES saves (number) ON DELETE CASCADE,
        key TEXT NOT NULL,
        reason TEXT NOT NULL,
        superseded_at REAL NOT NULL
    ) STRICT;

    CREATE INDEX due_copies ON copies (remote, save) WHERE due;
    CREATE INDEX ended_copies ON copies (remote, save)
        WHERE state IN ('given_up', 'refused', 'superseded');
    -- From saves to copies, whatever the planner thinks of it: most queries name a state or a step.
    CREATE VIEW saves_at AS
        SELECT saves.*, copies.remote, copies.state AS copy_state, copies.location,
               copies.published_at, copies.due
        FROM saves CROSS JOIN copies ON copies.save = saves.number;
    CREATE VIEW owed_shards AS
        SELECT copies.remote, shards.save, shards.version, shards.size_bytes
        FROM copies JOIN saves ON saves.number = copies.save
        JOIN shards ON shards.save = copies.save
        WHERE copies.due AND copies.state = 'open' AND saves.state IN ('open', 'published')
          AND shards.state IN ('dirty', 'clean') AND shards.here
          AND NOT EXISTS (SELECT 1 FROM verified_copies
                          WHERE version = shards.version AND remote = copies.remote);

    CREATE TRIGGER save_begins AFTER INSERT ON saves
        BEGIN
            INSERT INTO copies (save, remote, state, due) VALUES (NEW.number, 'durable',
                iif(NEW.state = 'published', 'published', 'open'),
                NEW.state IN ('open', 'local_only'));
            INSERT INTO copies (save, remote) SELECT NEW.number, name FROM replicas
                WHERE NEW.state IN ('open', 'local_only');
        END;
    CREATE TRIGGER save_is_published AFTER UPDATE OF state ON saves
        WHEN NEW.state = 'published'
        BEGIN UPDATE copies SET state = 'published'
              WHERE save = NEW.number AND remote = 'durable'; END;
    CREATE TRIGGER save_is_reopened AFTER UPDATE OF state ON saves
        WHEN NEW.state = 'open' AND OLD.state = 'published'
        BEGIN UPDATE copies SET state = 'open', due = 1
              WHERE save = NEW.number AND remote = 'durable'; END;
    CREATE TRIGGER save_ends AFTER UPDATE OF state ON saves
        WHEN NEW.state IN ('superseded', 'refused')
        BEGIN UPDATE copies SET state = NEW.state, due = due AND location IS NOT NULL
              WHERE save = NEW.number AND (state = 'open' OR remote = 'durable'); END;
    -- What is deleted is deleted at every replica. An empty location is one that nobody here knows:
    -- the drain looks for it there.
    CREATE TRIGGER save_is_deleted AFTER UPDATE OF state ON saves
        WHEN NEW.state = 'deleted'
        BEGIN
            UPDATE copies SET state = 'deleted', due = location IS NOT NULL
                WHERE save = NEW.number AND remote = 'durable';
            INSERT INTO copies (save, remote, state, location)
                SELECT NEW.number, name, 'deleted', '' FROM replicas WHERE true
                ON CONFLICT (save, remote) DO UPDATE SET state = 'deleted', due = 1,
                location = coalesce(location, '');
        END;
    CREATE TRIGGER shard_leaves BEFORE DELETE ON shards
        WHEN EXISTS (SELECT 1 FROM copies WHERE save = OLD.save AND location IS NOT NULL AND due)
        BEGIN INSERT OR IGNORE INTO leftovers
              VALUES (OLD.save, OLD.name, OLD.version, OLD.digest); END;
"""

# What brings a catalog of the version before to this one, in one transaction.
FROM_BEFORE = "ALTER TABLE saves ADD COLUMN replaces TEXT NOT NULL DEFAULT ''"
VERSION = 13
