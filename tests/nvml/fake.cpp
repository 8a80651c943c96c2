// A library that answers like libnvidia-ml.so (TRIREME_NVML), for simulated GPUs.
//   TRIREME_TEST_NVML   words separated by blanks: gpus=8 (default 2), and faults of a GPU, FAULT=GPU:NUMBER:
//                       watts=0:690  celsius=0:61  gib=0:71  lanes=2:8  ecc=1:3  remap=0:1 (pending; 2: failed)
//                       recovery=0:1  nvlinks=1:17  mhz=0:210  slowdown=0:64  recoveries=1:2 and replays=1:40 (of each
//                       of its NVLinks); missing=GPU:0 (does not answer); hang=GPU:1 (no call returns while the word
//                       is present); hidden=GPU:0
//                       (another job's); refuse=0:9 (nvmlInit's status); xid=GPU:79, which is reported once: the n-th
//                       such word is the n-th event
//   TRIREME_TEST_NVML_FILE   a file of such words, reread at every call: faults that occur while the program runs
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kLost = 15, kNoPermission = 4, kInvalid = 2, kTimeout = 10, kLinks = 18;

std::string all_words() {
  const char *text = std::getenv("TRIREME_TEST_NVML"), *path = std::getenv("TRIREME_TEST_NVML_FILE");
  std::string words = text == nullptr ? "" : text;
  if (path == nullptr) return words;
  std::ifstream file(path);
  return words + " " + std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the number of `fault` for `gpu`, or `otherwise`.
unsigned of(const std::string& fault, int gpu, unsigned otherwise) {
  std::istringstream words(all_words());
  for (std::string word; words >> word;) {
    const std::string begin = fault + "=" + std::to_string(gpu) + ":";
    if (word.rfind(begin, 0) == 0) return static_cast<unsigned>(std::stoul(word.substr(begin.size())));
    if (fault == "gpus" && word.rfind("gpus=", 0) == 0) return static_cast<unsigned>(std::stoul(word.substr(5)));
  }
  return otherwise;
}

char gpus[64];  // a handle is the address of one
int index_of(void* gpu) { return static_cast<int>(static_cast<char*>(gpu) - gpus); }

struct PciInfo {
  char legacy[16];
  unsigned numbers[5];
  char bus_id[32];
};
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct EventData {
  void* gpu;
  unsigned long long type, data;
  unsigned instances[2];
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int value_type, status;
  unsigned long long value;
};

size_t reported = 0;  // events so far

// Returns GPU and XID of every such word: "xid=1:79" gives GPU 1 and 79.
std::vector<std::pair<int, unsigned>> all_xids() {
  std::vector<std::pair<int, unsigned>> xids;
  std::istringstream words(all_words());
  for (std::string word; words >> word;)
    if (word.rfind("xid=", 0) == 0)
      xids.emplace_back(std::stoi(word.substr(4)), static_cast<unsigned>(std::stoul(word.substr(word.find(':') + 1))));
  return xids;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  reported = 0;
  return static_cast<int>(of("refuse", 0, 0));
}
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int status) { return status == kLost ? "GPU is lost" : "fake error"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.65.06", size);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = of("gpus", 0, 2);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned gpu, void** handle) {
  if (gpu >= of("gpus", 0, 2)) return kInvalid;
  while (of("hang", static_cast<int>(gpu), 0) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (of("hidden", static_cast<int>(gpu), 1) == 0) return kNoPermission;
  *handle = gpus + gpu;
  return of("missing", static_cast<int>(gpu), 1) == 0 ? kLost : 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::strncpy(text, "Fake GPU", size);
  return 0;
}
int nvmlDeviceGetIndex(void* gpu, unsigned* index) {
  *index = static_cast<unsigned>(index_of(gpu));
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* gpu, PciInfo* info) {
  std::strcpy(info->bus_id, ("00000000:1" + std::to_string(index_of(gpu)) + ":00.0").c_str());
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* gpu, unsigned* lanes) {
  *lanes = of("lanes", index_of(gpu), 16);
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = 16;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* gpu, int type, int counter, unsigned long long* count) {
  *count = type == 1 && counter == 0 ? of("ecc", index_of(gpu), 0) : 1000;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* gpu, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  const unsigned state = of("remap", index_of(gpu), 0);
  *corrected = *uncorrected = 5;
  *pending = state == 1;
  *failed = state == 2;
  return 0;
}
int nvmlDeviceGetFieldValues(void* gpu, int count, FieldValue* fields) {
  for (int i = 0; i < count; ++i) {
    fields[i].status = fields[i].field == 230 ? 0 : kInvalid;
    fields[i].value = of("recovery", index_of(gpu), 0);
  }
  return 0;
}
int nvmlDeviceGetClockInfo(void* gpu, int, unsigned* mhz) {
  *mhz = of("mhz", index_of(gpu), 1980);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {  // "0000:13:00.0" is GPU 3
  const std::string text = id;
  if (text.rfind("0000:1", 0) != 0) return kInvalid;
  return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(text[6] - '0'), handle);
}
int nvmlDeviceGetTemperature(void* gpu, int, unsigned* celsius) {
  *celsius = of("celsius", index_of(gpu), 40);
  return 0;
}
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  *milliwatts = 1000 * of("watts", index_of(gpu), 100);
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* gpu, MemoryInfo* memory) {
  *memory = {
      .total = 80ull << 30, .free = 0, .used = static_cast<unsigned long long>(of("gib", index_of(gpu), 1)) << 30};
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* reasons) {
  *reasons = of("slowdown", index_of(gpu), 1);
  return 0;
}
int nvmlDeviceGetNvLinkState(void* gpu, unsigned link, int* up) {
  if (link >= kLinks) return kInvalid;
  *up = link < of("nvlinks", index_of(gpu), kLinks);
  return 0;
}
int nvmlDeviceGetNvLinkErrorCounter(void* gpu, unsigned link, int counter, unsigned long long* count) {
  if (link >= kLinks || counter > 3) return kInvalid;
  *count = of(counter == 1 ? "recoveries" : counter == 0 ? "replays" : "", index_of(gpu), 0);
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = gpus;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return 0; }
int nvmlEventSetWait_v2(void*, EventData* event, unsigned milliseconds) {
  for (unsigned waited = 0;; ++waited) {
    const auto xids = all_xids();
    if (reported < xids.size()) {
      const auto [gpu, xid] = xids[reported++];
      *event = {.gpu = gpus + gpu, .type = 8, .data = xid, .instances = {}};
      return 0;
    }
    if (waited == milliseconds) return kTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
}
