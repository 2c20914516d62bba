#include "tests/support/accelerator/stream_order.h"

#include <cstddef>
#include <sstream>
#include <utility>

namespace terrace {
namespace {

constexpr size_t kMostReports = 100;

const char* WordOf(bool is_write) { return is_write ? "writes" : "reads"; }

std::string WordsOf(AddressRange bytes) {
  std::ostringstream words;
  words << (bytes.end - bytes.begin) << " bytes at 0x" << std::hex
        << bytes.begin;
  return words.str();
}

}  // namespace

void StreamOrder::Add(std::string name) {
  names_.push_back(std::move(name));
  clocks_.emplace_back();
}

void StreamOrder::NoteTask(AcceleratorStream stream, int64_t number) {
  VectorClock& clock = clocks_[static_cast<size_t>(stream)];
  clock.Join(cpu_);
  clock.Advance(stream, number);
}

void StreamOrder::NoteUse(AcceleratorStream stream, const Touch& touch,
                          const std::string& by) {
  const VectorClock& clock = clocks_[static_cast<size_t>(stream)];
  const auto conflict = ledger_.Touch(
      touch.bytes, {stream, clock.Of(stream), by}, touch.is_write, clock);
  if (!conflict) return;
  std::string text = by + " on " + name_of(stream) + " " +
                     WordOf(touch.is_write) + " " + WordsOf(touch.bytes) +
                     " and is not ordered after ";
  const std::string& other = name_of(conflict->other.stream);
  switch (conflict->kind) {
    case Conflict::Kind::kAllocation:
      text += "the block's allocation on " + other +
              ", which may still use the memory";
      break;
    case Conflict::Kind::kReuse:
      text += conflict->other.by + " on " + other + ", which " +
              WordOf(conflict->is_other_write) +
              " the block that had the memory before and was freed without "
              "that stream recorded";
      break;
    case Conflict::Kind::kUnordered:
      text += conflict->other.by + " on " + other + ", which " +
              WordOf(conflict->is_other_write) + " it";
      break;
  }
  Report(std::move(text));
}

void StreamOrder::NoteWait(AcceleratorStream stream, const VectorClock& done) {
  clocks_[static_cast<size_t>(stream)].Join(done);
}

VectorClock StreamOrder::Record(AcceleratorStream stream) const {
  VectorClock clock = clocks_[static_cast<size_t>(stream)];
  clock.Join(cpu_);
  return clock;
}

void StreamOrder::NoteAllocation(AddressRange bytes, AcceleratorStream home) {
  ledger_.Allocate(bytes, home, clocks_[static_cast<size_t>(home)].Of(home));
}

bool StreamOrder::IsFreeForCpu(const Touch& touch) {
  return !ledger_.Find(touch.bytes, touch.is_write, cpu_);
}

bool StreamOrder::NoteCpuUse(const Touch& touch, const std::string& by) {
  const auto conflict = ledger_.Find(touch.bytes, touch.is_write, cpu_);
  if (!conflict) return true;
  Report(by + " " + WordOf(touch.is_write) + " " + WordsOf(touch.bytes) +
         " and has not waited for " + conflict->other.by + " on " +
         name_of(conflict->other.stream) + ", which " +
         WordOf(conflict->is_other_write) + " it");
  return false;
}

void StreamOrder::ReportFault(AddressRange bytes, bool is_read,
                              AcceleratorStream stream) {
  Report(std::string("the CPU ") + (is_read ? "writes " : "uses ") +
         WordsOf(bytes) + " and has not waited for " + name_of(stream) +
         ", which " + WordOf(!is_read) + " them");
}

void StreamOrder::Report(std::string text) {
  ++report_count_;
  if (reports_.size() < kMostReports) reports_.push_back(std::move(text));
}

void StreamOrder::ClearReports() {
  reports_.clear();
  report_count_ = 0;
}

}  // namespace terrace
