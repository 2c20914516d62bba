// Checkpoints: parameters, optimizer state, counters and values of the user's,
// from which a run goes on bit for bit, also with another budget, number of
// paths, engine or chunk size: state is kept by parameter, not by chunk.
//
//   SaveCheckpoint("run1", {.parameters = tensors, .optimizer = &optimizer,
//                           .values = {{"seed", int64_t{7}}}}, deadline);
//   ...
//   auto checkpoint = Checkpoint::Open("run1");
//   (*checkpoint)->Load(tensors, &optimizer, deadline);
//
// A checkpoint is a directory:
//
//   checkpoint.json                 what the others are; checksums, counters,
//                                   numbers and short values
//   parameters-<id>.safetensors     NAME, in its own dtype, any that
//                                   safetensors has
//   optimizer-<id>.safetensors      NAME.exp_avg, NAME.exp_avg_sq and, of
//                                   16-bit parameters, NAME.master; all fp32;
//                                   one for each rank that has state. Where a
//                                   master does not round to the parameter
//                                   beside it, that was written after the
//                                   last step and is what counts
//   values-<id>.safetensors         value.KEY as uint8: texts and bytes of more
//                                   than 4 KiB, or behind 1 MiB of short ones;
//                                   only if there are some
//
// Any program that reads safetensors reads the latter. A parameter that
// never had a gradient has no state there.
//
// The file checkpoint.json is the checkpoint: a save writes files of new
// names, flushes them, opens them as a reader does, and renames a new
// checkpoint.json over the old one. What a reader would refuse does not get
// there: it is an error of the save, and the old checkpoint stays. A
// kill or a power loss at any moment leaves the old checkpoint or the new one.
// So a save needs room for both. One writer at a time (a lock on the directory,
// and the file checkpoint.lock in it: Unavailable); readers need no lock. On a
// file system that other hosts may have, the lock file of a save that was
// killed on another host stays: Unavailable, which says whose it is.
//
// A save lists its files, and those that it replaces, in checkpoint.lock, and a
// part in a checkpoint-<id>.lock, before it makes them; the lists go with the
// save. What a killed save listed is removed by the next one, or by
// PrepareCheckpointDirectory, once the present checkpoint.json is on disk; no
// other file ever is. Where files of a checkpoint lie that nobody listed, and
// no checkpoint.json, nothing is saved: FailedPrecondition. So is a
// checkpoint.lock that is not a save's.
//
// Ranks that share the state each write their part to the one directory, which
// all of them see (one machine, or a file system that they share):
//
//   auto commit = CheckpointCommit::Begin("run1", values);   // rank 0
//   ... rank 0 tells the others that it has begun ...
//   auto part = WriteCheckpointPart("run1", ...);            // every rank
//   ... rank 0 is told every part ...
//   (*commit)->Commit(parts);                                // rank 0
//
// The result is a checkpoint like any other. SaveCheckpoint is this with one
// part.
//
// Every byte is covered by an XXH3: of checkpoint.json, of each file's header,
// and of each 4 MiB of each tensor, so that damage is found with its place.
// Nothing of a checkpoint stays in the page cache when it was written or read,
// as far as the file system lets go of it.
//
// State streams between its tier and the file in blocks of 4 MiB: a save and a
// load have one of each of a parameter's two or three arrays in memory, and of
// parameters one where they have no address. Values are in memory, once where
// they are long. A save
// reads every chunk of the state once. Functions block; they may be called
// from any thread, but a save or load uses its optimizer and parameters as
// their one thread. Errors that all may have: PermissionDenied;
// ResourceExhausted: a full disk, with path and errno, or a checkpoint.json of
// more than the 1 GiB that are read, with EFBIG and sizes; Unavailable: a
// device that fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"
#include "terrace/stored_dtype.h"

namespace terrace {

// An optimizer on another rank has the parameter, whose state is neither read
// nor written here.
inline constexpr int kOfAnotherRank = -2;

// Elements that have no address: they are on a device, or do not lie in order.
// Those of one tensor; the caller keeps them for the length of a call.
// Both are given whole elements, at most 4 MiB of them, by their place in bytes
// among all of them in order. An error ends the save or load with that error.
class CheckpointElements {
 public:
  virtual ~CheckpointElements() = default;

  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> target) = 0;
  virtual absl::Status Write(int64_t offset,
                             absl::Span<const std::byte> source) = 0;
};

struct CheckpointTensor {
  std::string name;                     // UTF-8, not empty, not "__metadata__"
  StoredDType dtype = DType::kFloat32;  // any; the optimizer has DType's
  std::vector<int64_t> shape;  // empty: a scalar, which has one element
  // Of its elements, contiguous; the caller's. Null only without elements, and
  // with these in its place:
  void* data = nullptr;
  CheckpointElements* elements = nullptr;
  // Its index in the optimizer; -1: the optimizer does not have it; or
  // kOfAnotherRank.
  int optimizer_parameter = -1;

  int64_t count() const;
};

struct CheckpointBytes {
  std::string value;
  friend bool operator==(const CheckpointBytes&,
                         const CheckpointBytes&) = default;
};

// Random state, data position, a scheduler's numbers. Strings and keys are
// UTF-8. Doubles come back bit for bit, but for the bits of a NaN. Of any
// length; long ones lie in a file of their own.
using CheckpointValue =
    std::variant<int64_t, double, std::string, CheckpointBytes>;
using CheckpointValues = std::map<std::string, CheckpointValue>;

struct CheckpointContents {
  absl::Span<const CheckpointTensor> parameters;
  // Each of its parameters must be among `parameters`. Null: none.
  OffloadedOptimizer* optimizer = nullptr;
  CheckpointValues values;
};

// Makes the directory if it is not there (its parent must be) and replaces the
// checkpoint in it. Returns the new one's bytes. After an error the old one is
// what it was, and nothing else is left; one exception: if the last flush of
// the directory fails, the new one is there but may not outlive a power loss,
// and the old one's files stay until a later save.
//
// InvalidArgument: names, shapes or indices that do not fit together.
// FailedPrecondition: the optimizer's last step is incomplete or running, or
// its state is half loaded; or the directory is none to save to, see above.
// DataLoss, DeadlineExceeded: state that could not be read. Cancelled: state of
// a parent's, in a forked child.
absl::StatusOr<int64_t> SaveCheckpoint(const std::string& directory,
                                       const CheckpointContents& contents,
                                       Time deadline);

enum class CheckpointPart {
  kParametersAndState,  // one rank's
  kState,               // of the others; data of parameters is not looked at
};

// Writes and flushes the files of one part: the state of those parameters that
// `contents.optimizer` has (null: those that it would have are without
// elements), and with kParametersAndState all parameters. `contents.values` are
// not written; see Begin. A commit must be under way, here or on another rank.
// Returns a text for Commit, of 16 bytes for each 4 MiB of tensors, and some
// for each tensor. From then on the files are the commit's; after an error
// nothing is left. Errors as of SaveCheckpoint, and NotFound: no directory;
// FailedPrecondition: the commit ended meanwhile.
absl::StatusOr<std::string> WriteCheckpointPart(
    const std::string& directory, const CheckpointContents& contents,
    CheckpointPart part, Time deadline);

// Holds the lock on the directory as long as it lives; then removes what parts
// left that were not committed, and the lock's file. A forked child's copy is
// Cancelled, and does neither. Thread-compatible.
class CheckpointCommit {
 public:
  // As a save begins: makes the directory, removes what killed saves left,
  // writes the values that are long.
  static absl::StatusOr<std::unique_ptr<CheckpointCommit>> Begin(
      const std::string& directory, CheckpointValues values);

  virtual ~CheckpointCommit() = default;

  // Once, when all parts are written: makes them the checkpoint, and returns
  // its bytes. After an error the old one is what it was and the parts are
  // gone, with SaveCheckpoint's one exception. InvalidArgument: parts that are
  // not of one whole; DataLoss: a part's text was altered, or its file is not
  // what was written; FailedPrecondition: it is not in this directory.
  virtual absl::StatusOr<int64_t> Commit(
      absl::Span<const std::string> parts) = 0;
};

// What a program that is going to save calls at its start, so that it does not
// fail only hours later: makes the directory if need be, sees that it can be
// written, removes what a killed save left.
absl::Status PrepareCheckpointDirectory(const std::string& directory);

// One checkpoint, open: a later save to its directory does not disturb it. In a
// forked child, which has none of its files, reading is Cancelled.
// Thread-compatible.
class Checkpoint {
 public:
  // NotFound: no directory, or no checkpoint in it. DataLoss: files that are
  // missing, truncated or altered, as far as sizes and headers tell; names
  // file, tensor and offset. InvalidArgument: another format or version.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& directory);

  virtual ~Checkpoint() = default;

  virtual int64_t step() const = 0;  // of the optimizer; 0: there was none
  virtual bool has_optimizer() const = 0;
  virtual int64_t size_bytes() const = 0;
  // In the order of the file, with null data.
  virtual absl::Span<const CheckpointTensor> parameters() const = 0;
  virtual const CheckpointValues& values() const = 0;

  // Reads everything and compares checksums. DataLoss names the first block
  // that is not what was written: file, tensor, offset.
  virtual absl::Status Verify() = 0;

  // Whether Load would take them, without a look at what the tensors hold or
  // where, which may be null; changes nothing. For ranks that load all or none.
  // InvalidArgument: they do not fit, named as here and there.
  virtual absl::Status Fits(absl::Span<const CheckpointTensor> parameters,
                            const OffloadedOptimizer* optimizer) const = 0;

  // Fills `parameters`, which must be those of the checkpoint by name, dtype
  // and shape, and the optimizer (null: only parameters), whose state and
  // counters it replaces. A block is written only after its checksum was
  // right.
  //
  // InvalidArgument: they do not fit (see Fits); nothing was changed. DataLoss,
  // and any other error: the optimizer is as after Reset (if even that fails,
  // the message says so) and the parameters are untouched; only a file that is
  // damaged during the call, which the message says, or elements that cannot be
  // written leave them half written.
  virtual absl::Status Load(absl::Span<const CheckpointTensor> parameters,
                            OffloadedOptimizer* optimizer, Time deadline) = 0;
};

}  // namespace terrace
