#include "runtime/mover/mover_report.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ReportTest : public AdmissionTest {
 protected:
  void ExpectBroken(const std::string& rule) {
    const absl::Status status = core_.report().CheckInvariants();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule));
  }
};

TEST_F(ReportTest, ThoseWhoHoldAreNamedSomeOfThem) {
  EXPECT_EQ(core_.report().Holders(), "");
  Customer& customer = core_.Open(kPage, 1);
  EXPECT_EQ(core_.report().Holders(), "1 queues");
  Tensor& tensor = AddResting("a");
  core_.Fetch(tensor);
  Push(customer, {Read(tensor)});
  Admit(customer);
  EXPECT_EQ(core_.report().Holders(), "1 queues, 'a'");
  for (int pins = 2; pins <= 9; ++pins) {
    Push(customer, {Read(tensor)});
    Admit(customer);
  }
  EXPECT_EQ(core_.report().Holders(),
            "1 queues, 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', and more, 9 "
            "pins");
}

TEST_F(ReportTest, TheNumbersAreThoseOfTheParts) {
  Tensor& tensor = AddResting("a");  // 2 pages down
  core_.Fetch(tensor);               // and up again, to stay
  core_.Add("b", kPage, kDisk1);     // a place alone
  core_.Add("c", kPage, kDisk1);
  Customer& customer = core_.Open(kPage, 3);
  Push(customer, {Read(tensor)});
  Admit(customer);
  const Stats stats = core_.report().MakeStats(absl::UnavailableError("first"));
  EXPECT_EQ(stats.engine, "faulty memory");
  EXPECT_EQ(stats.host.budget_bytes, 64 * kPage);
  EXPECT_EQ(stats.host.used_bytes, 8 * kPage);
  EXPECT_EQ(stats.host.peak_bytes, 8 * kPage);
  EXPECT_EQ(stats.window_bytes, 6 * kPage);
  EXPECT_EQ(stats.resident_bytes, 2 * kPage);
  ASSERT_EQ(stats.paths().size(), 2u);
  EXPECT_EQ(stats.paths()[0].disk.file, "disk0/state");
  EXPECT_EQ(stats.paths()[0].tensors, 1);
  EXPECT_EQ(stats.paths()[1].tensors, 2);
  EXPECT_EQ(stats.paths()[1].used_bytes, 4 * kPage);
  EXPECT_EQ(stats.paths()[0].capacity_bytes, 64 * kPage);
  EXPECT_EQ(stats.bytes_written(), 2 * kPage);
  EXPECT_EQ(stats.bytes_read(), 2 * kPage);
  ASSERT_EQ(stats.tiers.size(), 3u);
  EXPECT_EQ(stats.tiers[0].name, "dram");
  EXPECT_EQ(stats.tiers[0].budget_bytes, 64 * kPage);
  EXPECT_EQ(stats.tiers[0].used_bytes, 8 * kPage);
  EXPECT_EQ(stats.tiers[0].peak_bytes, 8 * kPage);
  EXPECT_EQ(stats.tiers[2].name, "nvme:disk1");
  EXPECT_EQ(stats.tiers[2].kind, TierKind::kDisk);
  EXPECT_EQ(stats.tiers[2].used_bytes, 4 * kPage);
  ASSERT_EQ(stats.links.size(), 4u);
  EXPECT_EQ(stats.links[0].from, "dram");
  EXPECT_EQ(stats.links[0].to, "nvme:disk0");
  EXPECT_EQ(stats.links[0].bytes, 2 * kPage);
  EXPECT_EQ(stats.links[1].from, "nvme:disk0");
  EXPECT_EQ(stats.links[1].to, "dram");
  EXPECT_EQ(stats.links[1].bytes, 2 * kPage);
  EXPECT_EQ(stats.links[3].bytes, 0);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.tiers[0].hits, 1);
  EXPECT_EQ(stats.tiers[0].evictions, 0);
  EXPECT_EQ(stats.tiers[1].hits, 0);
  EXPECT_EQ(stats.demand_reads, 0);
  EXPECT_EQ(stats.evictions, 0);
  EXPECT_EQ(stats.host.quarantined_bytes, 0);
  EXPECT_EQ(stats.first_error, absl::UnavailableError("first"));
}

TEST_F(ReportTest, TheBooksAgreeWhateverIsUnderWay) {
  EXPECT_TRUE(core_.report().CheckInvariants().ok());
  Tensor& fetched = AddResting("fetched");
  Tensor& written = core_.Add("written");
  core_.Write(written);
  Customer& customer = core_.Open(kPage, 2);
  Push(customer, {Read(fetched)});
  Admit(customer);
  core_.transfers.StartDrain(
      written, kDisk1,
      *std::move(*core_.resting.at(kDisk1).Allocate(2 * kPage, true)));
  EXPECT_TRUE(core_.report().CheckInvariants().ok())
      << core_.report().CheckInvariants();
  core_.machine.faults->FailCall(1, {.kind = FaultKind::kNever},
                                 CallFilter::kReads);
  Hear(core_.SettleFor(absl::Seconds(3)));
  EXPECT_EQ(core_.transfers.late_bytes(), 2 * kPage);
  EXPECT_TRUE(core_.report().CheckInvariants().ok())
      << core_.report().CheckInvariants();
  EXPECT_EQ(core_.report().MakeStats({}).host.quarantined_bytes, 2 * kPage);
}

TEST_F(ReportTest, ATensorsOwnInvariantIsTold) {
  core_.Add("a", kPage, kNoTier).GivePlace(Reservation());
  ExpectBroken("tensor 'a': a copy without room");
}

TEST_F(ReportTest, EveryWantIsCounted) {
  core_.customers.KeepWants({.wants = {{TensorId{0}, Access::kRead}}});
  ExpectBroken("the groups want others than were counted");
}

TEST_F(ReportTest, EveryPlaceBelowIsATensors) {
  core_.Add("a");
  const auto nobodys = core_.resting.at(kDisk0).Allocate(kPage, true);
  ExpectBroken("disk0/state: its tensors have 8192 bytes, its books say 12288");
}

TEST_F(ReportTest, EveryResidentHasACopy) {
  Tensor& tensor = core_.Add("a");
  const Reservation room = core_.residency.FindRoom(tensor);
  ExpectBroken("tensor 'a': a resident without a copy");
}

TEST_F(ReportTest, EveryByteOfMemoryIsSomebodys) {
  core_.Write(core_.Add("a"));
  const auto nobodys = core_.dram.Allocate(kPage, true);
  ExpectBroken("extents add up to 8192 bytes, the budget says 12288 of 262144");
}

}  // namespace
}  // namespace terrace
