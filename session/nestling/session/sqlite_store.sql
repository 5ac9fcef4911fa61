-- All SQL of nestling.session.sqlite_backend_io, by name; nothing is ever put into it
-- but bound values. Texts come in as bytes and are cast: a text may hold half a
-- character, which Python's driver does not write.
--
-- The layout is version 4 of Nestling's own application id. What a file says of its
-- tables must be this text to the letter, so a change here is a new version.

-- name: create_sessions
CREATE TABLE sessions(
  id TEXT PRIMARY KEY,
  version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  cwd TEXT,
  parent_session TEXT,
  seed_length INTEGER,
  seed_digest TEXT,
  spawned_by TEXT,
  origin TEXT,
  delegation_depth INTEGER,
  agent_preset TEXT,
  other_fields TEXT,
  incarnation TEXT NOT NULL,
  revision INTEGER NOT NULL
) STRICT

-- name: create_sessions_by_parent
CREATE INDEX sessions_by_parent ON sessions(parent_session)

-- name: create_events
CREATE TABLE events(
  session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  time INTEGER NOT NULL,
  data TEXT NOT NULL,
  source_event_seqs TEXT,
  surface_op TEXT,
  ignorable INTEGER CHECK (ignorable = 1),
  PRIMARY KEY(session_id, seq)
) STRICT

-- name: stamp_application_id
PRAGMA application_id = 0x4E455354

-- name: stamp_user_version
PRAGMA user_version = 4

-- name: application_id
PRAGMA application_id

-- name: user_version
PRAGMA user_version

-- name: schema_version
PRAGMA schema_version

-- name: encoding
PRAGMA encoding

-- name: layout
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name

-- name: set_trusted_schema
PRAGMA trusted_schema = OFF

-- name: trusted_schema
PRAGMA trusted_schema

-- name: set_mmap_size
PRAGMA mmap_size = 0

-- name: mmap_size
PRAGMA mmap_size

-- name: set_foreign_keys
PRAGMA foreign_keys = ON

-- name: foreign_keys
PRAGMA foreign_keys

-- name: set_synchronous
PRAGMA synchronous = FULL

-- name: synchronous
PRAGMA synchronous

-- name: busy_timeout
PRAGMA busy_timeout

-- name: journal_mode
PRAGMA journal_mode

-- name: set_journal_wal
PRAGMA journal_mode = WAL

-- name: set_journal_delete
PRAGMA journal_mode = DELETE

-- name: begin_reading
BEGIN DEFERRED

-- name: begin_writing
BEGIN IMMEDIATE

-- name: begin_alone
BEGIN EXCLUSIVE

-- name: commit
COMMIT

-- name: roll_back
ROLLBACK

-- name: begin_session
SAVEPOINT one_session

-- name: keep_session
RELEASE one_session

-- name: roll_back_session
ROLLBACK TO one_session

-- name: insert_session
INSERT INTO sessions(
  id, version, created_at, cwd, parent_session, seed_length, seed_digest, spawned_by,
  origin, delegation_depth, agent_preset, other_fields, incarnation, revision
) VALUES (
  CAST(:id AS TEXT), :version, :created_at, CAST(:cwd AS TEXT),
  CAST(:parent_session AS TEXT), :seed_length, CAST(:seed_digest AS TEXT),
  CAST(:spawned_by AS TEXT), CAST(:origin AS TEXT), :delegation_depth,
  CAST(:agent_preset AS TEXT), CAST(:other_fields AS TEXT),
  CAST(:incarnation AS TEXT), 1
)

-- name: insert_event
INSERT INTO events(
  session_id, seq, type, time, data, source_event_seqs, surface_op, ignorable
) VALUES (
  CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, CAST(? AS TEXT), CAST(? AS TEXT),
  CAST(? AS TEXT), ?
)

-- name: bump_revision
UPDATE sessions SET revision = revision + 1 WHERE id = CAST(? AS TEXT)

-- name: revision
SELECT incarnation, revision FROM sessions WHERE id = CAST(? AS TEXT)

-- name: session
SELECT
  incarnation, revision, id, version, created_at, cwd, parent_session, seed_length,
  seed_digest, spawned_by, origin, delegation_depth, agent_preset, other_fields
FROM sessions WHERE id = CAST(? AS TEXT)

-- name: sessions
SELECT
  incarnation, revision, id, version, created_at, cwd, parent_session, seed_length,
  seed_digest, spawned_by, origin, delegation_depth, agent_preset, other_fields
FROM sessions ORDER BY id

-- name: children
SELECT
  incarnation, revision, id, version, created_at, cwd, parent_session, seed_length,
  seed_digest, spawned_by, origin, delegation_depth, agent_preset, other_fields
FROM sessions WHERE parent_session = CAST(? AS TEXT) ORDER BY id

-- name: events_from
SELECT seq, type, time, data, source_event_seqs, surface_op, ignorable
FROM events WHERE session_id = CAST(? AS TEXT) AND seq >= ? ORDER BY seq

-- name: all_events
SELECT seq, type, time, data, source_event_seqs, surface_op, ignorable
FROM events WHERE session_id = CAST(? AS TEXT) ORDER BY seq

-- name: last_event
SELECT seq, type, time, data, source_event_seqs, surface_op, ignorable
FROM events WHERE session_id = CAST(? AS TEXT) ORDER BY seq DESC LIMIT 1

-- name: delete_events_from
DELETE FROM events WHERE session_id = CAST(? AS TEXT) AND seq >= ?

-- name: delete_session
DELETE FROM sessions WHERE id = CAST(? AS TEXT)
