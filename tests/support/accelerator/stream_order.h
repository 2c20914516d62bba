// What is over for whom: a clock for each stream and one for the CPU, carried
// by events, waits and what the CPU has waited for, and the ledgers of memory.
// A use of memory that no wait orders after those before it is reported as it
// is given, whether the streams happened to be fast or not.
//
// The CPU has one clock, whichever of its threads has waited: how they tell
// each other is not seen here.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/accelerator/access_ledger.h"
#include "tests/support/accelerator/vector_clock.h"

namespace terrace {

struct Touch {
  AddressRange bytes;
  bool is_write = false;
};

class StreamOrder {
 public:
  void Add(std::string name);
  const std::string& name_of(AcceleratorStream stream) const {
    return names_[static_cast<size_t>(stream)];
  }

  // The stream is given its next task, which has that number.
  void NoteTask(AcceleratorStream stream, int64_t number);
  // Its newest task uses the bytes.
  void NoteUse(AcceleratorStream stream, const Touch& touch,
               const std::string& by);
  void NoteWait(AcceleratorStream stream, const VectorClock& done);
  // What is over once all is that the stream was given until now.
  VectorClock Record(AcceleratorStream stream) const;
  void NoteCpuWait(const VectorClock& done) { cpu_.Join(done); }

  void NoteAllocation(AddressRange bytes, AcceleratorStream home);
  // The allocator has waited for that before it gives the bytes away.
  void Settle(AddressRange bytes, const VectorClock& done) {
    ledger_.Settle(bytes, done);
  }
  // The CPU may: nothing that it has not waited for uses the bytes.
  bool IsFreeForCpu(const Touch& touch);
  // As it uses them; false: reported.
  bool NoteCpuUse(const Touch& touch, const std::string& by);
  // It has used what tasks of the stream use: `is_read` by them alone.
  void ReportFault(AddressRange bytes, bool is_read, AcceleratorStream stream);

  const std::vector<std::string>& reports() const { return reports_; }
  int64_t report_count() const { return report_count_; }
  void ClearReports();

 private:
  void Report(std::string text);

  std::vector<std::string> names_;
  std::vector<VectorClock> clocks_;
  VectorClock cpu_;
  AccessLedger ledger_;
  std::vector<std::string> reports_;  // the first
  int64_t report_count_ = 0;
};

}  // namespace terrace
