// Tensors of LibTorch that live below: their bytes are in memory while an
// operation uses them, and otherwise wherever the Runtime keeps them. The model
// and the program stay as they are.
//
//   auto hook = terrace::Hook::Create(*runtime, {.window_bytes = 64 << 20});
//   (*hook)->Manage(named);           // copies them, and takes their memory
//   model->forward(x).backward();     // fetches what each operation needs
//   (*hook)->Close(Hook::AtClose::kRestore);
//
// Shapes, version counters, views, aliases and saved tensors are untouched.
// What is written to by operations, as their schemas have it, is written back;
// what was only read leaves for free. Two tensors of one storage are managed as
// one.
//
// Whoever reads the bytes otherwise (data_ptr(), extensions, libraries) holds a
// Lease meanwhile. Without one, from LibTorch 2.12 on every such access throws;
// before, it is a null pointer.
//
// What a fetch cannot bring makes the operation throw c10::Error, whose text
// begins with "terrace:" and names the tensor, its size and what failed;
// error() has the Status. Retry() lets it be tried again; before 2.12 it brings
// it at once, and gives the tensors that were managed another storage, so that
// views that were made before go on throwing. After a backward that has failed
// the graph is gone: from zeroed gradients, forward and backward again.
//
// A forked child has none of its parent's bytes: there each use throws.
//
// Thread-safe, and so is what LibTorch does with the tensors, with this
// exception: two operations at a time may not write one tensor. The Runtime
// must outlive it; tensors need not, and may.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "terrace/runtime.h"

namespace terrace {

class Gradients;
class ManagedStorages;
class SavedTensors;

struct HookOptions {
  // What of the Runtime's budget tensors may have at a time, each in whole
  // blocks of 4 KiB and one more. An operation whose tensors take more than
  // this together goes beyond it, as far as the Runtime's budget has room, and
  // further into ordinary memory, for as long as it lasts; where that has no
  // room either it throws, and the text names it. 0: three quarters of that
  // budget, as a quarter is for what is written back while operations go on.
  int64_t window_bytes = 0;
  // Of ordinary memory for an operation beyond the Runtime's budget, as far as
  // the machine has so much.
  int64_t beyond_bytes = INT64_MAX;
  // How long a fetch may take, room for it included.
  absl::Duration patience = absl::Minutes(5);
  // Compares what is to leave without being written with what came, to find
  // writes by no operation; costs a pass over the bytes each way.
  bool verify_clean = false;
};

struct NamedTensor {
  std::string name;  // unique within the Runtime
  at::Tensor tensor;
};

// Of ManageSaved's tensors.
struct SavedStats {
  int64_t tensors = 0;  // storages, of all steps
  int64_t bytes = 0;
  int64_t peak_bytes = 0;     // at a time
  int64_t evicted_bytes = 0;  // that went down
  int64_t fetched_bytes = 0;
  absl::Duration blocked;
};

struct HookStats {
  int64_t managed_tensors = 0;  // storages
  int64_t managed_bytes = 0;
  int64_t window_used_bytes = 0;
  int64_t window_peak_bytes = 0;
  int64_t over_budget_bytes = 0;  // beyond the window, at most at a time
  // That had most beyond the Runtime's budget, in ordinary memory; "": none.
  std::string over_budget_operation;
  int64_t fetches = 0;  // that an operation or a lease waited for
  int64_t fetches_ahead = 0;
  int64_t ahead_used = 0;  // of those, needed since
  int64_t fetched_bytes = 0;
  int64_t evictions = 0;
  int64_t clean_drops = 0;         // of those, without a write
  int64_t unmarked_writes = 0;     // found by verify_clean, and written back
  int64_t failures = 0;            // fetches
  absl::Duration blocked;          // operations and leases, by fetches
  absl::Duration blocked_on_room;  // of that, by what had to leave first
  SavedStats saved;                // counted above too
};

// How long operations and leases have waited for this tensor.
struct BlockedOn {
  std::string tensor;
  absl::Duration duration;
};

// A tensor's bytes, in memory for as long as this lives. Move-only; ends on any
// thread.
class Lease {
 public:
  Lease();  // of nothing
  ~Lease();
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;

  // Of the whole storage; empty after the end.
  absl::Span<std::byte> data() const;
  void End();

 private:
  friend class Hook;
  struct Held;
  explicit Lease(std::unique_ptr<Held> held);

  std::unique_ptr<Held> held_;
};

class Hook {
 public:
  enum class Access : uint8_t { kRead, kWrite };
  enum class AtClose : uint8_t {
    kRestore,  // tensors are brought into ordinary memory
    kRefuse,   // they stay away: each use throws
  };

  // InvalidArgument: a window below 0, or one beyond the Runtime's budget; no
  // patience.
  static absl::StatusOr<std::unique_ptr<Hook>> Create(
      Runtime& runtime, const HookOptions& options);
  // Closes with kRestore if Close did not.
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // From here on the window is so large, and operations may have `most_bytes`
  // of the Runtime's budget, whatever that was before: where others have taken
  // of it, or it has grown. InvalidArgument: no window, or one beyond the most,
  // or that beyond the Runtime's budget.
  absl::Status Resize(int64_t window_bytes, int64_t most_bytes);

  // Takes these over: their bytes are copied once and their old memory is given
  // back, whatever made it. What this hook manages already is left as it is,
  // and so is what has no bytes. No operation may use them meanwhile.
  // InvalidArgument, with the tensor's name: no dense tensor in CPU memory with
  // bytes of its own, memory shared with other processes, one larger than the
  // Runtime's budget. FailedPrecondition: another hook's, or one whose update
  // after a step failed; updates that go on are waited for. Else what
  // Runtime::Register and fetches say. After an error none of these is managed;
  // whose bytes could not be brought back either is named, and lost.
  absl::Status Manage(absl::Span<const NamedTensor> tensors);

  // From here on each of these leaves' gradients is managed from the moment
  // that backward has made it, as its leaf's name with ".grad": it stays the
  // tensor that it is, to which more may be added, and its bytes are below when
  // others need the room. Sparse ones are left as they are; where the Runtime
  // refuses one, backward throws. A leaf lives until Close. Not together with
  // what works on gradients by their addresses.
  // InvalidArgument, and nothing changes: no leaf that requires a gradient.
  // FailedPrecondition: the hook is closed.
  absl::Status ManageGradients(absl::Span<const NamedTensor> leaves);
  // The same of what the leaf's gradient is now, once; none is fine. For what
  // hears of each backward itself, and so keeps no leaf alive. As Manage.
  absl::Status ManageGradient(const NamedTensor& leaf);

  // Whether this hook has its storage. Looks at no bytes.
  bool Manages(const at::Tensor& tensor) const;

  // Before the first operation whose saved tensors are handed to ManageSaved:
  // storages of more bytes are left as they are, as what one operation of
  // backward takes has to fit at a time; again, for another such limit. From
  // here until Close all operations are seen.
  void BeginSaving(int64_t most_bytes);
  // Where autograd saves a tensor, such as in a hook of saved tensors: its
  // storage is managed from now on, and is in memory until the operation that
  // the calling thread is in has ended. It is the same tensor to all that have
  // it, and ends with the last of them. Other threads may not be using it.
  // False: it is left as it is, since any hook manages it, or it is no dense
  // tensor in memory that LibTorch made, or too large; or not BeginSaving.
  // Else what Runtime::Register and fetches say; it is as before then.
  absl::StatusOr<bool> ManageSaved(const at::Tensor& tensor);
  // Where backward asks for a saved tensor: those that were saved just before
  // it are fetched while no step has told the order yet. A hint.
  void UseSaved(const at::Tensor& tensor);

  // Waits for the update of a late step, as operations do. InvalidArgument: not
  // managed here. FailedPrecondition: that update failed. Else what the fetch
  // says; the tensor is as before then, and may be tried again.
  absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor, Access access);

  // Begins to fetch those that are away, and waits for none; as far as the
  // window has room without what was begun before. Never fails.
  void Prefetch(absl::Span<const at::Tensor> tensors);

  // A training step begins, or whatever repeats. From here on the order of uses
  // is traced; from the second step on what is used next, as in the step
  // before, is fetched while operations compute, and what is used latest is
  // evicted first. Without steps the one used longest ago is.
  void BeginStep();

  // Away with all that no operation or lease uses; how many there were.
  int64_t EvictAll();

  // Fetches that failed may be tried again; before LibTorch 2.12 they are, and
  // the first error is returned. FailedPrecondition: a tensor that has failed
  // is leased or in use; again later.
  absl::Status Retry();

  // Ends the management of all, once no late step's updates go on; no operation
  // may use them meanwhile.
  // Idempotent. FailedPrecondition, and nothing changes: one is leased or in
  // use (named). Else it is closed, and the first error of a tensor that could
  // not be brought is told: that one is refused. What had failed before is
  // tried again. Cancelled: in a forked child, where all are.
  absl::Status Close(AtClose what);

  HookStats stats() const;
  // Of what is managed and was waited for, the longest first; saved tensors,
  // which come and go, are in stats().
  std::vector<BlockedOn> blocked() const;
  // The first failure of a fetch, or of ManageSaved or a gradient, or of an
  // update whose failure refused an operation what is managed, with errno and
  // path; or of taking a tensor over again that has another storage.
  // That a lease or Close lacked room is told to its caller alone.
  absl::Status error() const;

 private:
  Hook(Runtime& runtime, std::shared_ptr<ManagedStorages> storages);

  Runtime& runtime_;
  // They may end after it.
  const std::shared_ptr<ManagedStorages> storages_;
  std::unique_ptr<Gradients> gradients_;
  const std::unique_ptr<SavedTensors> saved_;
};

}  // namespace terrace
