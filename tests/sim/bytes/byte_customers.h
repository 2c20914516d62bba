// Random customers of queues of bytes, and what they must see: a plain map of
// contents. Each customer has threads of its own, which are turned by hand: a
// thread runs operations within operations, uses what its customer has pinned,
// pushes what it lacks as one group, and waits for it. Recalls are answered at
// once, late, or never, and queues are closed with pins held. Every operation
// is drawn from the seed.
//
// What must hold. A pin's bytes are those of the map, always. A request is
// answered by its deadline, but for what its transfers take. A failure is a
// typed Status, and one that the history explains. Each recalled pin was
// granted, is recalled once, and not after its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace terrace {

struct ByteCustomersOptions {
  uint64_t seed = 1;
  bool faults = false;  // of disks
  bool never = false;   // a customer that answers no recall
  bool closes = true;   // queues, with pins held
  bool device = false;  // all customers but the first work at one
  // All is written before, and then read without deadlines: nobody excludes
  // another, so that every request is answered, soon, and none fails.
  bool reads = false;
  Transcript* transcript = nullptr;
};

// The payload of a tensor of that size, also where it is a device's, which is
// plain bytes here.
inline absl::Span<std::byte> DataOf(const Pin& pin, size_t size_bytes) {
  if (!pin.data().empty()) return pin.data();
  return {reinterpret_cast<std::byte*>(pin.address()), size_bytes};
}

class ByteCustomers {
 public:
  explicit ByteCustomers(const ByteCustomersOptions& options);
  ~ByteCustomers();

  void Run(int count);
  // Everything ends, and all contents are the map's.
  void Drain();

  struct Seen {
    int64_t uses = 0;      // compared with the map
    int64_t answers = 0;   // requests that were
    int64_t failures = 0;  // of these
    int64_t recalls = 0;
    int64_t beyond = 0;  // groups
    int64_t joins = 0;
  };
  const Seen& seen() const { return seen_; }
  World& world() { return world_; }

 private:
  struct Truth {
    TensorId id;
    bool written = false;
    bool lost = false;
    std::vector<std::byte> bytes;
  };
  // What a customer has pinned, by tensor.
  struct Held {
    Pin pin;
    Access access = Access::kRead;
    int uses = 0;
    bool dirty = false;
    bool wanted = false;  // it ends with its last use
  };
  struct Use {
    int tensor = 0;
    Access access = Access::kRead;
  };
  using Operation = std::vector<Use>;
  // A thread computes its innermost operation, or waits for the next one's
  // request, its own or another thread's.
  struct Thread {
    std::vector<Operation> running;
    Operation next;
    std::optional<uint64_t> request;     // of its own
    std::optional<uint64_t> joined;      // another thread's
    std::vector<uint64_t> waiting_with;  // while it waits for that
    Time deadline;
    int64_t pushed = 0;  // acts before that
  };
  enum class Answers : uint8_t { kAtOnce, kLate, kNever };
  struct Customer {
    std::unique_ptr<ByteQueue> queue;
    Answers answers = Answers::kAtOnce;
    bool on_device = false;
    std::map<int, Held> held;
    std::map<int, uint64_t> coming;  // tensors, by request
    std::vector<uint64_t> late;      // recalls
    std::set<uint64_t> recalled;
    std::vector<Thread> threads;
    int64_t step = 0;
    bool step_open = false;
  };

  // A request's transfers may take so much longer than its deadline.
  static constexpr absl::Duration kTransfers = absl::Seconds(200);

  static int64_t SizeOf(int tensor);
  uint64_t Draw(uint64_t below) { return random_() % below; }
  void Open(Customer& customer);
  void WriteAll();
  // The pin of a tensor alone.
  absl::StatusOr<Pin> Have(const Truth& truth, Access access);
  void Act();
  void Turn(Customer& customer, Thread& thread);
  void Begin(Customer& customer, Thread& thread);
  bool MayUse(const Customer& customer, const Use& use) const;
  void Push(Customer& customer, Thread& thread);
  void Await(Customer& customer, Thread& thread);
  void Take(Customer& customer, Thread& thread, Awaited& news);
  void Start(Customer& customer, Thread& thread);
  void End(Customer& customer, Thread& thread);
  void Compare(Customer& customer, const Use& use);
  void Answer(Customer& customer, uint64_t token);
  void Hear(Customer& customer, const std::vector<uint64_t>& recalls);
  void EndPin(Customer& customer, int tensor);
  void Step(Customer& customer);
  void Close(Customer& customer);
  void Explain(const absl::Status& status, const Customer& customer,
               const Thread& thread);
  std::vector<uint64_t> TokensOf(const Customer& customer,
                                 const Thread& thread) const;
  bool IsQuiet() const;
  std::string Describe() const;

  const ByteCustomersOptions options_;
  std::mt19937_64 random_;
  World world_;
  std::vector<Truth> tensors_;
  std::vector<Customer> customers_;
  // Of closed queues: they stay valid, and end one by one.
  std::vector<std::pair<int, Held>> left_;
  bool faults_on_ = false;
  int64_t acts_ = 0;
  Seen seen_;
};

}  // namespace terrace
