// A job's image, as another process finds it: after each change it has what a
// map beside it has.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/jobs/image/claimed_image.h"
#include "daemon/jobs/image/image_file.h"
#include "daemon/jobs/image/image_writer.h"
#include "daemon/jobs/image/kept_job.h"
#include "daemon/jobs/image/other_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/tensor_life.h"
#include "terrace/version.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

using testing::UnorderedElementsAre;

ImageFacts SomeFacts() {
  ImageFacts facts;
  facts.job = {1000, "night"};
  facts.process = 4711;
  facts.start_time = 99;
  facts.asked.memory_bytes = 1 << 20;
  facts.asked.growth_bytes = 4096;
  facts.asked.eviction = EvictionKind::kLru;
  facts.asked.prefetch = false;
  facts.asked.patience_ms = 1234;
  facts.spill_bytes = 8192;
  for (int i = 0; i < 2; ++i) {
    ImageFacts::Disk& disk = facts.disks.emplace_back();
    disk.place = absl::StrCat("/mnt/", i);
    disk.file.name = absl::StrCat("terrace-", i);
    disk.file.direct_io = i == 1;
    disk.file.alignment = 512;
    disk.file.seal_id = 7 + static_cast<uint64_t>(i);
  }
  ImageFacts::Mapped& far = facts.mapped.emplace_back();
  far.tier = "far:node2";
  far.most_bytes = 1 << 30;
  ImageFacts::Mapped& pmem = facts.mapped.emplace_back();
  pmem.tier = "pmem:/mnt/pmem0";
  pmem.medium.name = "terrace-9";
  pmem.medium.seal_id = 11;
  return facts;
}

ImageFile Reopened(const ImageFile& file) {
  return *ImageFile::Reopen(file.file().Share());
}

TEST(ImageFileTest, FactsAreWhatTheyWere) {
  ImageFile made = *ImageFile::Make(SomeFacts());
  made.SetUsedBytes(5 << 20);
  EXPECT_FALSE(made.held_pins());
  made.NoteHeldPins();
  EXPECT_EQ(Reopened(made).used_bytes(), 5 << 20);
  EXPECT_TRUE(Reopened(made).held_pins());
  const ImageFacts facts = Reopened(made).facts();
  EXPECT_EQ(facts.job, (JobName{1000, "night"}));
  EXPECT_EQ(facts.process, 4711);
  EXPECT_EQ(facts.start_time, 99u);
  EXPECT_EQ(facts.asked.memory_bytes, 1 << 20);
  EXPECT_EQ(facts.asked.growth_bytes, 4096);
  EXPECT_EQ(facts.asked.eviction, EvictionKind::kLru);
  EXPECT_FALSE(facts.asked.prefetch);
  EXPECT_EQ(facts.asked.patience_ms, 1234);
  EXPECT_EQ(facts.spill_bytes, 8192);
  ASSERT_EQ(facts.disks.size(), 2u);
  EXPECT_EQ(facts.disks[1].place, "/mnt/1");
  EXPECT_EQ(facts.disks[1].file.name, "terrace-1");
  EXPECT_TRUE(facts.disks[1].file.direct_io);
  EXPECT_EQ(facts.disks[1].file.alignment, 512);
  EXPECT_EQ(facts.disks[0].file.seal_id, 7u);
  ASSERT_EQ(facts.mapped.size(), 2u);
  EXPECT_EQ(facts.mapped[0].tier, "far:node2");
  EXPECT_EQ(facts.mapped[0].most_bytes, 1 << 30);
  EXPECT_EQ(facts.mapped[1].medium.name, "terrace-9");
  EXPECT_EQ(facts.mapped[1].medium.seal_id, 11u);
}

TEST(ImageFileTest, WhatIsNoneIsRefused) {
  EXPECT_FALSE(ImageFile::Reopen(OwnDescriptor()).ok());
  EXPECT_FALSE(
      ImageFile::Reopen(OwnDescriptor::Open("/dev/null", O_RDWR)).ok());
  for (const auto& damage : std::vector<void (*)(ImageHeader&)>{
           [](ImageHeader& header) { header.magic ^= 1; },
           [](ImageHeader& header) { header.version[0] ^= 1; },
           [](ImageHeader& header) { header.version.fill('x'); },
           [](ImageHeader& header) { header.tiers.disks = 17; },
           [](ImageHeader& header) { header.tiers.media = 9; },
           [](ImageHeader& header) { header.entries = UINT32_MAX; },
           [](ImageHeader& header) { header.is_incomplete = 1; }}) {
    const ImageFile made = *ImageFile::Make(SomeFacts());
    damage(made.header());
    EXPECT_FALSE(ImageFile::Reopen(made.file().Share()).ok());
  }
}

TEST(ImageFileTest, APathThatHasNoRoomIsRefused) {
  ImageFacts facts = SomeFacts();
  facts.disks[0].place.assign(2000, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(ImageFile::Make(facts).status()));
}

TEST(ImageFileTest, TokensServeUntilTheNextIsUsed) {
  ImageFile file = *ImageFile::Make(SomeFacts());
  EXPECT_FALSE(file.Accepts(JobToken{}));
  const JobToken first = file.MakeToken(JobToken{});
  EXPECT_TRUE(file.Accepts(first));
  const JobToken second = file.MakeToken(first);
  EXPECT_TRUE(file.Accepts(first) && file.Accepts(second));
  const JobToken third = file.MakeToken(second);
  EXPECT_FALSE(file.Accepts(first));
  EXPECT_TRUE(file.Accepts(second) && file.Accepts(third));
  file.ForgetOldToken();
  EXPECT_FALSE(file.Accepts(second));
  EXPECT_TRUE(Reopened(file).Accepts(third));
}

TEST(ProcessStartTest, IsTheSameForOneAndNoneForNone) {
  EXPECT_TRUE(StartOf(getpid()).has_value());
  EXPECT_EQ(StartOf(getpid()), StartOf(getpid()));
  EXPECT_NE(StartOf(getpid()), StartOf(getppid()));
  EXPECT_FALSE(StartOf(-5).has_value());
  EXPECT_FALSE(StartOf(1 << 30).has_value());
}

TEST(KeptJobTest, NamesHaveTheirKey) {
  for (const std::string& each :
       {ImageName("job-1f"), MemoryName("job-1f"), LockName("job-1f", 3)}) {
    EXPECT_EQ(KeyOf(each), "job-1f") << each;
  }
  for (const char* other : {"", "control", "job", "job-", "job-1f", "-image"}) {
    EXPECT_EQ(KeyOf(other), "") << other;
  }
}

class ImageWriterTest : public testing::Test {
 protected:
  std::unique_ptr<Tensor> Make(int64_t id, const std::string& name) {
    TensorSpec spec;
    spec.name = name;
    spec.size_bytes = 100 + id;
    spec.global_offset = 3 * id;
    spec.step_number = id % 5;
    return std::make_unique<Tensor>(spec, TensorId{id}, nullptr, &writer_);
  }
  RuntimeImage Read() const { return *ReadImage(Reopened(file_)); }
  Reservation Room(Reserver& from, int64_t place) {
    return {&from, {place * 8192, 8192}};
  }

  ImageFile file_ = *ImageFile::Make(SomeFacts());
  ImageWriter writer_{file_};
  FakeReserver memory_{kDramTier};
  FakeReserver disk_{{TierKind::kDisk, 1}};
};

TEST_F(ImageWriterTest, ATensorsLifeStandsThere) {
  const auto tensor = Make(7, "weights");
  tensor->GivePlace(Room(disk_, 3));
  EXPECT_TRUE(Read().tensors.empty()) << "nobody was told of it";
  writer_.OnTensor(*tensor);
  RuntimeImage image = Read();
  ASSERT_EQ(image.tensors.size(), 1u);
  EXPECT_EQ(image.next_tensor, 8);
  EXPECT_EQ(image.tensors[0].spec.name, "weights");
  EXPECT_EQ(image.tensors[0].spec.size_bytes, 107);
  EXPECT_EQ(image.tensors[0].spec.global_offset, 21);
  EXPECT_EQ(image.tensors[0].spec.step_number, 2);
  EXPECT_EQ(image.tensors[0].below.extent, (Extent{3 * 8192, 8192}));
  EXPECT_EQ(image.tensors[0].below.tier, disk_.id());
  EXPECT_EQ(image.tensors[0].below.generation, 0u);
  EXPECT_EQ(image.tensors[0].memory.tier, kNoTier);

  tensor->BeginOverwrite(Room(memory_, 5));
  tensor->Hold(kDramTier, Access::kOverwrite);
  EXPECT_EQ(Read().tensors[0].memory.extent, (Extent{5 * 8192, 8192}));
  EXPECT_EQ(Read().tensors[0].memory.generation, 0u) << "undefined";
  tensor->Publish(kDramTier);
  tensor->Unhold(kDramTier, Access::kOverwrite);
  EXPECT_EQ(Read().tensors[0].generation, 1u);
  EXPECT_EQ(Read().tensors[0].memory.generation, 1u);

  tensor->BeginDrain(1);
  tensor->BeginMove(/*in_place=*/true, 2);
  EXPECT_EQ(Read().tensors[0].below.generation, 0u) << "torn from here on";
  tensor->Drained({}, 1);
  EXPECT_EQ(Read().tensors[0].below.generation, 1u);
  tensor->Drop(kDramTier);
  EXPECT_EQ(Read().tensors[0].memory.tier, kNoTier);
  tensor->BeginFill(kDramTier, Room(memory_, 6), 3);
  EXPECT_EQ(Read().tensors[0].memory.tier, kNoTier) << "on its way";
  tensor->Filled(kDramTier);
  tensor->Checked(kDramTier);
  EXPECT_EQ(Read().tensors[0].memory.extent, (Extent{6 * 8192, 8192}));
  tensor->Lose(absl::DataLossError("gone"));
  EXPECT_TRUE(Read().tensors[0].is_lost);
  writer_.OnTensorEnd({7});
  EXPECT_TRUE(Read().tensors.empty());
  EXPECT_EQ(Read().next_tensor, 8);
}

// Names of any length; entries are used again.
TEST_F(ImageWriterTest, ManyComeAndGoAndTheRestStands) {
  std::mt19937 random(7);
  std::map<int64_t, std::unique_ptr<Tensor>> tensors;
  std::map<uint64_t, int64_t> pins;
  for (int64_t id = 0; id < 2000; ++id) {
    const size_t length = std::uniform_int_distribution<size_t>(0, 900)(random);
    auto tensor = Make(id, absl::StrCat(id, std::string(length, 'n')));
    writer_.OnTensor(*tensor);
    tensors[id] = std::move(tensor);
    const auto token = static_cast<uint64_t>(3 * id + 1);
    writer_.OnPin({.token = token, .tensor = {id}, .queue = id % 7});
    pins[token] = id;
    while (tensors.size() > 40) {
      const auto gone =
          std::next(tensors.begin(),
                    std::uniform_int_distribution<ptrdiff_t>(0, 40)(random));
      writer_.OnTensorEnd({gone->first});
      tensors.erase(gone);
    }
    while (pins.size() > 20) {
      writer_.OnPinEnd(pins.begin()->first);
      pins.erase(pins.begin());
    }
  }
  const RuntimeImage image = Read();
  ASSERT_EQ(image.tensors.size(), tensors.size());
  for (const TensorImage& each : image.tensors) {
    EXPECT_EQ(each.spec.name, tensors.at(each.id.value)->spec.name);
  }
  ASSERT_EQ(image.pins.size(), pins.size());
  for (const PinImage& each : image.pins) {
    EXPECT_EQ(each.tensor.value, pins.at(each.token));
  }
  EXPECT_EQ(image.next_token, 3u * 1999 + 2);
  EXPECT_LT(file_.header().entries, 1000u) << "entries are used again";

  // Another writer goes on with it.
  ImageFile again = Reopened(file_);
  ImageWriter other(again);
  RuntimeImage kept = image;
  kept.tensors.resize(5);
  kept.pins.clear();
  other.KeepOnly(kept);
  EXPECT_EQ(ReadImage(again)->tensors.size(), 5u);
  EXPECT_TRUE(ReadImage(again)->pins.empty());
  const uint32_t entries = again.header().entries;
  for (int64_t id = 3000; id < 3060; ++id) {
    other.OnTensor(*Make(id, absl::StrCat("new", id)));
  }
  EXPECT_EQ(again.header().entries, entries) << "what was free is used first";
  EXPECT_EQ(ReadImage(again)->tensors.size(), 65u);
}

TEST_F(ImageWriterTest, QueuesStandThereUntilTheyClose) {
  writer_.OnQueue({.id = 3, .window = {4096, 8192}, .slots = 2});
  writer_.OnQueue({.id = 5, .window_bytes = 777});
  RuntimeImage image = Read();
  ASSERT_EQ(image.queues.size(), 2u);
  EXPECT_EQ(image.queues[0].window, (Extent{4096, 8192}));
  EXPECT_EQ(image.queues[0].slots, 2);
  EXPECT_EQ(image.queues[1].window_bytes, 777);
  EXPECT_EQ(image.next_queue, 6);
  writer_.OnQueueEnd(3);
  writer_.OnQueueEnd(3);
  image = Read();
  ASSERT_EQ(image.queues.size(), 1u);
  EXPECT_EQ(image.queues[0].id, 5);
}

// An image that is damaged is read or refused; nothing is looked for outside.
TEST_F(ImageWriterTest, DamageIsNoCrash) {
  for (int64_t id = 0; id < 30; ++id) {
    writer_.OnTensor(*Make(id, std::string(300 + id, 'n')));
    writer_.OnPin({.token = static_cast<uint64_t>(id), .tensor = {id}});
  }
  const size_t bytes = file_.header().entries * sizeof(ImageEntry);
  auto* const begin = reinterpret_cast<uint8_t*>(&file_.entry(0));
  const std::vector<uint8_t> whole(begin, begin + bytes);
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    const size_t at =
        std::uniform_int_distribution<size_t>(0, bytes - 1)(random);
    begin[at] = static_cast<uint8_t>(random());
    ImageFile again = Reopened(file_);
    // A writer has what was read alone.
    if (ReadImage(again).ok()) ImageWriter(again).OnTensorEnd({i % 30});
    std::memcpy(begin, whole.data(), bytes);
  }
  EXPECT_EQ(Read().tensors.size(), 30u);
}

TEST(ClaimedImageTest, HasWhatItsProcessHas) {
  RuntimeImage image;
  for (int64_t id = 0; id < 3; ++id) {
    TensorImage& tensor = image.tensors.emplace_back();
    tensor.id = {id};
    tensor.spec.name = absl::StrCat("t", id);
  }
  image.queues = {{.id = 1}, {.id = 2}};
  image.pins = {{.token = 10, .tensor = {0}},
                {.token = 11, .tensor = {1}},
                {.token = 12, .tensor = {2}}};
  ClaimRequest claim;
  claim.queues = {{.queue = 2, .step = 5, .hold_at_most = 6}, {.queue = 9}};
  claim.pins = {10, 12, 99};
  claim.recalled = {10};
  claim.kept = {10, 11};
  claim.known = {{0, 2}, {5, 9}};
  const RuntimeImage claimed = ClaimedOf(image, claim);
  ASSERT_EQ(claimed.tensors.size(), 2u);
  ASSERT_EQ(claimed.queues.size(), 1u);
  EXPECT_EQ(claimed.queues[0].id, 2);
  EXPECT_EQ(claimed.queues[0].step, std::optional<int64_t>(5));
  EXPECT_EQ(claimed.queues[0].hold_at_most, 6);
  ASSERT_EQ(claimed.pins.size(), 1u) << "no pin of what is not there";
  EXPECT_EQ(claimed.pins[0].token, 10u);
  EXPECT_TRUE(claimed.pins[0].is_recalled && claimed.pins[0].is_kept);
}

}  // namespace
}  // namespace terrace
