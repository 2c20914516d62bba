// A hook lets tensors of LibTorch live below: their bytes are in memory while
// an operation uses them, and otherwise wherever the Runtime keeps them. The
// model and the program stay as they are.
//
//   auto hook = terrace::Hook::Create(*runtime, {.window_bytes = 64 << 20});
//   (*hook)->Manage(named);           // copies them, and takes their memory
//   model->forward(x).backward();     // fetches what each operation needs
//   (*hook)->Close(Hook::AtClose::kRestore);
//
// Shapes, version counters, views, aliases and saved tensors are untouched. A
// tensor that operations write to, as their schemas have it, is written back; a
// tensor that was only read leaves for free. Two tensors of one storage are
// managed as one.
//
// Whoever reads the bytes otherwise (data_ptr(), extensions, libraries) holds a
// Lease meanwhile. Without a Lease, an access to bytes that are away throws
// from LibTorch 2.12 on; before 2.12 it finds a null pointer.
//
// A tensor that a fetch cannot bring makes the operation throw c10::Error,
// whose text begins with "terrace:" and names the tensor, its size and what
// failed; error() has the Status. Retry() lets the tensor be fetched again, for
// every view of it. After a backward that has failed the graph is gone: the
// program zeroes the gradients, and runs forward and backward again.
//
// A forked child has none of its parent's bytes: each use of them throws there.
//
// A hook is thread-safe, and so is what LibTorch does with the tensors, with
// this exception: two operations at a time may not write one tensor. The
// Runtime must outlive the hook; tensors need not, and may.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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
#include "terrace/torch/placement.h"

namespace terrace {

class Gradients;
class ManagedStorages;
class PlacedTensors;
class SavedTensors;

struct HookOptions {
  // The hook manages tensors of this device, with its number: of CPU memory, or
  // of any accelerator that LibTorch has. Of an accelerator the Runtime has the
  // tier `hbm:DEVICE` (Options::tiers), and the window is
  // there: what follows says budget of that tier's. Where all of it is in use
  // the operation throws; nothing is beyond it.
  c10::Device device = c10::Device(c10::kCPU);
  // The bytes of the Runtime's budget that tensors may have at a time, each
  // tensor in whole blocks of 4 KiB and one block more. An operation whose
  // tensors take more than this together goes beyond it, as far as the
  // Runtime's budget has room, and further into ordinary memory, for as long as
  // the operation lasts; where ordinary memory has no room either the operation
  // throws, and the text names it. 0 stands for three quarters of the Runtime's
  // budget, as a quarter is for tensors that are written back while operations
  // go on.
  int64_t window_bytes = 0;
  // The bytes of ordinary memory that an operation beyond the Runtime's budget
  // may have, as far as the machine has so much.
  int64_t beyond_bytes = INT64_MAX;
  // How long a fetch may take, its wait for room included.
  absl::Duration patience = absl::Minutes(5);
  // The hook compares the bytes of a tensor that is to leave without a write
  // with those that came, to find writes by no operation. The comparison costs
  // a pass over the bytes each way. CPU memory's alone.
  bool verify_clean = false;
};

struct NamedTensor {
  std::string name;  // unique within the Runtime
  at::Tensor tensor;
};

// The tensors of ManageSaved.
struct SavedStats {
  int64_t tensors = 0;  // storages, of all steps
  int64_t bytes = 0;
  int64_t peak_bytes = 0;     // at a time
  int64_t evicted_bytes = 0;  // that went down
  int64_t fetched_bytes = 0;
  absl::Duration blocked;
};

// The tensors that operations made in a scope of Place, of which one that is
// left is an ordinary tensor.
struct PlacedStats {
  int64_t tensors = 0;  // storages, that were taken over
  int64_t bytes = 0;
  int64_t left_tensors = 0;  // for lack of room, or as they cannot be managed
  int64_t left_bytes = 0;
};

struct HookStats {
  int64_t managed_tensors = 0;  // storages
  int64_t managed_bytes = 0;
  int64_t window_used_bytes = 0;
  int64_t window_peak_bytes = 0;
  int64_t over_budget_bytes = 0;  // beyond the window, most at a time
  // The operation that had most beyond the Runtime's budget, in ordinary
  // memory; "" when there was none.
  std::string over_budget_operation;
  int64_t fetches = 0;        // that an operation or a lease waited for
  int64_t fetches_ahead = 0;  // that were begun before they were needed
  int64_t fetched_bytes = 0;
  int64_t evictions = 0;
  int64_t clean_drops = 0;         // of those, without a write
  int64_t unmarked_writes = 0;     // found by verify_clean, and written back
  int64_t failures = 0;            // fetches that failed
  absl::Duration blocked;          // operations and leases, by fetches
  absl::Duration blocked_on_room;  // of that, by what had to leave first
  SavedStats saved;                // counted above too
  PlacedStats placed;              // likewise
};

// How long operations and leases have waited for this tensor.
struct BlockedOn {
  std::string tensor;
  absl::Duration duration;
};

// A Lease keeps a tensor's bytes in memory for as long as it lives. It is
// move-only, and ends on any thread.
class Lease {
 public:
  Lease();  // of nothing
  ~Lease();
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;

  // Returns the bytes of the whole storage, or none after the end.
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

  // Fails with InvalidArgument when the window is below 0 or beyond the
  // Runtime's budget, when the patience is not above 0, or when LibTorch or the
  // Runtime has no such device; with Unimplemented for verify_clean on one; and
  // with ResourceExhausted where there is no thread to wait for it.
  static absl::StatusOr<std::unique_ptr<Hook>> Create(
      Runtime& runtime, const HookOptions& options);
  // The destructor closes the hook with kRestore if Close did not.
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // From here on the window has `window_bytes`, and operations may have
  // `most_bytes` of the Runtime's budget, whatever the two were before: others
  // may have taken of that budget, or it may have grown. Fails with
  // InvalidArgument when the window is not above 0 or is beyond `most_bytes`,
  // or when `most_bytes` is beyond the Runtime's budget.
  absl::Status Resize(int64_t window_bytes, int64_t most_bytes);

  // Takes these tensors over: their bytes are copied once and their old memory
  // is given back, whatever made it. A tensor that this hook manages already is
  // left as it is, and so is a tensor without bytes. No operation may use the
  // tensors meanwhile; updates that go on are waited for. Fails with
  // InvalidArgument, which names the tensor, when it is no dense tensor in CPU
  // memory with bytes of its own, is in memory shared with other processes, or
  // is larger than the Runtime's budget. Fails with FailedPrecondition when the
  // hook is closed, another hook manages the tensor, a collective uses it, or
  // its update after a step failed. Other errors are those of Runtime::Register
  // and of fetches. After an error none of these tensors is managed; the error
  // names a tensor whose bytes could not be brought back either, which are
  // lost.
  absl::Status Manage(absl::Span<const NamedTensor> tensors);

  // From here on each of these leaves' gradients is managed from the moment
  // that backward has made it, under its leaf's name with ".grad": it stays the
  // tensor that it is, to which more may be added, and its bytes are below when
  // others need the room. Sparse gradients are left as they are; where the
  // Runtime refuses a gradient, backward throws. A leaf lives until Close. A
  // program may not combine this with libraries that work on gradients by their
  // addresses. Fails with InvalidArgument, and changes nothing, when a tensor
  // is no leaf that requires a gradient, and with FailedPrecondition when the
  // hook is closed.
  absl::Status ManageGradients(absl::Span<const NamedTensor> leaves);
  // Manages the leaf's present gradient once; a leaf without a gradient is
  // fine. A caller that hears of each backward itself uses this, and so keeps
  // no leaf alive. Errors are those of Manage.
  absl::Status ManageGradient(const NamedTensor& leaf);

  // Returns whether this hook manages the tensor's storage, and looks at no
  // bytes.
  bool Manages(const at::Tensor& tensor) const;

  // Must be called before the first operation whose saved tensors are handed to
  // ManageSaved. Storages of more than `most_bytes` are left as they are, as
  // all that one operation of backward takes has to fit at a time; another call
  // sets another limit. From here until Close all operations are seen.
  void BeginSaving(int64_t most_bytes);
  // The caller calls this where autograd saves a tensor, such as in a hook of
  // saved tensors. The tensor's storage is managed from now on, and is in
  // memory until the operation that the calling thread is in has ended. It is
  // the same tensor to all that have it, and ends with the last of them. Other
  // threads may not be using it. Returns false, and leaves the tensor as it is,
  // when any hook manages it, when an update or a collective uses it, when it
  // is no dense tensor in memory that LibTorch made, when it is too large, when
  // there is no room for it, or without BeginSaving. Other errors are those of
  // Runtime::Register and of fetches; the tensor is as before then.
  absl::StatusOr<bool> ManageSaved(const at::Tensor& tensor);
  // The caller calls this where backward asks for a saved tensor: the tensors
  // that were saved just before it are fetched while no step has told the order
  // yet. The call is a hint.
  void UseSaved(const at::Tensor& tensor);

  // Begins a scope of the calling thread: CPU tensors whose storages have 64
  // KiB and more and which operations of the thread make in it are managed from
  // the end of the operation on, until they end. They may be used, kept and
  // handed on as any, beyond the scope too. What an operation makes for itself
  // is never managed, nor what an operation within a backward pass makes. A
  // tensor that is made without contents, as by at::empty, is managed once an
  // operation of the thread has written it in the scope, unless one has read it
  // before, or one of another thread has had it; an address of it that C++ took
  // before is not followed. A tensor that has no room here, or
  // cannot be managed, stays an ordinary one (stats().placed); an error of the
  // Runtime is told by error(). Code that fills tensors by their addresses,
  // other than operations, holds a Lease, or makes them outside the scope.
  //
  // The first scope of the process puts an allocator in the place of
  // LibTorch's (placement.h), which stays; no other thread may make tensors
  // meanwhile. Fails with FailedPrecondition when the hook is closed, or where
  // another library's allocator has its place; with ResourceExhausted where
  // there are no addresses for new tensors; and with Cancelled in a forked
  // child.
  absl::StatusOr<PlacementScope> Place();

  // Waits for the update of a late step, as operations do. Fails with
  // InvalidArgument when the tensor is not managed here, with
  // FailedPrecondition when that update failed, and else with the error of the
  // fetch; the tensor is as before then, and may be tried again.
  absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor, Access access);

  // Begins to fetch those tensors that are away, and waits for none, as far as
  // memory has room that is free, or that evicted tensors have which need no
  // write. The call never fails.
  void Prefetch(absl::Span<const at::Tensor> tensors);

  // A training step begins, or whatever repeats. From the second step on the
  // Runtime reads tensors that are used next, as in the step before, while
  // operations compute, and has the tensor leave first that is used latest, of
  // all that its customers have. Without steps it is the tensor that was used
  // longest ago.
  void BeginStep();

  // Evicts all tensors that no operation or lease uses; returns how many there
  // were.
  int64_t EvictAll();

  // Fetches that failed are tried again by the next use. Returns Cancelled in a
  // forked child.
  absl::Status Retry();

  // Ends the management of all tensors, once no late step's updates go on; no
  // operation may use the tensors meanwhile. Close is idempotent. Fails with
  // FailedPrecondition, which names a tensor that is leased or in use, and
  // changes nothing. Otherwise the hook is closed, and Close returns the first
  // error of a tensor that could not be brought: that tensor is refused.
  // Fetches that had failed before are tried again. In a forked child Close
  // returns Cancelled, and all tensors are refused there.
  absl::Status Close(AtClose what);

  HookStats stats() const;
  // Returns the managed tensors that were waited for, the longest first; saved
  // tensors, which come and go, are in stats().
  std::vector<BlockedOn> blocked() const;
  // Returns the first failure of a fetch, or of ManageSaved or a gradient, or
  // of an update whose failure refused an operation a managed tensor; errno and
  // path are with it. The lack of room that a lease or Close meets is told to
  // its caller alone.
  absl::Status error() const;

 private:
  Hook(Runtime& runtime, c10::Device device,
       std::shared_ptr<ManagedStorages> storages);

  Runtime& runtime_;
  const c10::Device device_;
  // Storages may end after the hook.
  const std::shared_ptr<ManagedStorages> storages_;
  std::unique_ptr<Gradients> gradients_;
  const std::unique_ptr<SavedTensors> saved_;
  const std::shared_ptr<PlacedTensors> placed_;  // scopes have it too
};

}  // namespace terrace
