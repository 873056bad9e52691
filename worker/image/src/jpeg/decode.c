/* Decodes one JPEG with libjpeg-turbo as TensorFlow's tf.io.decode_jpeg(dct_method="INTEGER_ACCURATE")
 * does: it accepts the same streams and returns the same pixels.
 *
 * libjpeg reports an error by a callback that must not return. Here the callback jumps back into the
 * function of this file that was called from Rust, so that no Rust frame is ever jumped over. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* Rows that are read by one call. */
#define ROWS_MAX 16

struct shardfeed_jpeg {
  struct jpeg_decompress_struct info;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf failed;
  int scans_max;
  /* All pixels are there; only the end of the file is still read. */
  int is_finishing;
  char message[JMSG_LENGTH_MAX];
};

struct shardfeed_jpeg_header {
  uint32_t height, width;
  int32_t precision, components;
  /* One of libjpeg's J_COLOR_SPACE. */
  int32_t colors;
  int32_t is_progressive, is_lossless, is_multi_scan;
  /* Pixels of a row that are stored together; 0: only whole rows can be decoded. */
  uint32_t unit_width;
};

struct shardfeed_jpeg_region {
  uint32_t top, left, height, width;
};

static void fail(struct shardfeed_jpeg *jpeg, const char *message) {
  snprintf(jpeg->message, sizeof jpeg->message, "%s", message);
  longjmp(jpeg->failed, 1);
}

static void on_error(j_common_ptr info) {
  struct shardfeed_jpeg *jpeg = info->client_data;
  (*info->err->format_message)(info, jpeg->message);
  longjmp(jpeg->failed, 1);
}

/* Counts warnings, which are negative levels, and prints nothing. */
static void on_message(j_common_ptr info, int level) {
  if (level < 0) info->err->num_warnings++;
}

static void on_output(j_common_ptr info) { (void)info; }

/* Each scan of a progressive file is a pass over all coefficients. */
static void on_progress(j_common_ptr info) {
  struct shardfeed_jpeg *jpeg = info->client_data;
  if (jpeg->info.input_scan_number > jpeg->scans_max) fail(jpeg, "it has too many scans");
}

static void init_source(j_decompress_ptr info) { (void)info; }

/* The data ended. As in TensorFlow that is an error, except in the middle of a marker after the last pixel:
 * libjpeg has then read bytes that it has not yet taken from the buffer. */
static boolean fill_input(j_decompress_ptr info) {
  struct shardfeed_jpeg *jpeg = info->client_data;
  if (!jpeg->is_finishing || info->src->bytes_in_buffer == 0) fail(jpeg, "it ends too early");
  return FALSE;
}

static void skip_input(j_decompress_ptr info, long count) {
  struct jpeg_source_mgr *source = info->src;
  if (count <= 0) return;
  if ((size_t)count > source->bytes_in_buffer) fail(info->client_data, "it ends too early");
  source->next_input_byte += count;
  source->bytes_in_buffer -= (size_t)count;
}

void shardfeed_jpeg_free(struct shardfeed_jpeg *jpeg) {
  /* No error is possible here: it only frees. */
  jpeg_destroy_decompress(&jpeg->info);
  free(jpeg);
}

static int create(struct shardfeed_jpeg *jpeg) {
  if (setjmp(jpeg->failed)) return -1;
  jpeg_create_decompress(&jpeg->info);
  return 0;
}

/* Returns NULL if there is no memory. `bytes` must stay until it is freed. */
struct shardfeed_jpeg *shardfeed_jpeg_new(const unsigned char *bytes, size_t len, int scans_max) {
  struct shardfeed_jpeg *jpeg = calloc(1, sizeof *jpeg);
  if (jpeg == NULL) return NULL;
  jpeg->info.err = jpeg_std_error(&jpeg->errors);
  jpeg->errors.error_exit = on_error;
  jpeg->errors.emit_message = on_message;
  jpeg->errors.output_message = on_output;
  jpeg->info.client_data = jpeg;
  if (create(jpeg) != 0) {
    shardfeed_jpeg_free(jpeg);
    return NULL;
  }
  jpeg->source.init_source = init_source;
  jpeg->source.fill_input_buffer = fill_input;
  jpeg->source.skip_input_data = skip_input;
  jpeg->source.resync_to_restart = jpeg_resync_to_restart;
  jpeg->source.term_source = init_source;
  jpeg->source.next_input_byte = bytes;
  jpeg->source.bytes_in_buffer = len;
  jpeg->info.src = &jpeg->source;
  jpeg->progress.progress_monitor = on_progress;
  jpeg->info.progress = &jpeg->progress;
  jpeg->scans_max = scans_max;
  return jpeg;
}

/* Why the last call failed. */
const char *shardfeed_jpeg_message(const struct shardfeed_jpeg *jpeg) { return jpeg->message; }

/* How often libjpeg has warned of the data so far. */
long shardfeed_jpeg_warnings(const struct shardfeed_jpeg *jpeg) { return jpeg->errors.num_warnings; }

static uint32_t unit_width(const struct jpeg_decompress_struct *info) {
  const jpeg_component_info *parts = info->comp_info;
  if (info->num_components == 1) return DCTSIZE;
  if (info->num_components != 3) return 0;
  for (int part = 1; part < 3; part++)
    if (parts[part].h_samp_factor != 1 || parts[part].v_samp_factor != 1) return 0;
  if (parts[0].h_samp_factor == 3 || parts[0].v_samp_factor == 3) return 0;
  return DCTSIZE * parts[0].h_samp_factor;
}

/* Called first, and once. Returns 0, or -1 and a message. */
int shardfeed_jpeg_header(struct shardfeed_jpeg *jpeg, struct shardfeed_jpeg_header *header) {
  struct jpeg_decompress_struct *info = &jpeg->info;
  if (setjmp(jpeg->failed)) return -1;
  jpeg_read_header(info, TRUE);
  header->height = info->image_height;
  header->width = info->image_width;
  header->precision = info->data_precision;
  header->components = info->num_components;
  header->colors = info->jpeg_color_space;
  header->is_progressive = info->progressive_mode;
  header->is_lossless = info->min_DCT_scaled_size != DCTSIZE;
  header->is_multi_scan = jpeg_has_multiple_scans(info);
  header->unit_width = unit_width(info);
  return 0;
}

/* TensorFlow's own arithmetic; libjpeg has none for it. `channels` is 3 or 4. */
static void rgb_of_cmyk(const JSAMPLE *from, uint32_t width, int channels, int is_adobe, JSAMPLE *to) {
  for (; width > 0; width--, from += 4, to += channels) {
    const int k = is_adobe ? from[3] : 255 - from[3];
    for (int color = 0; color < 3; color++)
      to[color] = (JSAMPLE)(k * (is_adobe ? from[color] : 255 - from[color]) / 255);
    if (channels == 4) to[3] = 255;
  }
}

static void read_rows(struct shardfeed_jpeg *jpeg, int channels, uint32_t bottom, JSAMPLE *out) {
  struct jpeg_decompress_struct *info = &jpeg->info;
  const size_t pitch = (size_t)info->output_width * channels;
  JSAMPROW rows[ROWS_MAX];
  if (info->out_color_space == JCS_CMYK) {
    JSAMPARRAY inks =
        (*info->mem->alloc_sarray)((j_common_ptr)info, JPOOL_IMAGE, info->output_width * 4, 1);
    for (; info->output_scanline < bottom; out += pitch) {
      jpeg_read_scanlines(info, inks, 1);
      rgb_of_cmyk(inks[0], info->output_width, channels, info->saw_Adobe_marker, out);
    }
    return;
  }
  while (info->output_scanline < bottom) {
    const uint32_t left = bottom - info->output_scanline;
    const uint32_t most = left < ROWS_MAX ? left : ROWS_MAX;
    for (uint32_t row = 0; row < most; row++) rows[row] = out + row * pitch;
    out += jpeg_read_scanlines(info, rows, most) * pitch;
  }
}

/* Decodes a region to 1, 3 or 4 channels. The caller has checked that the region lies in the image, that
 * its left side is a multiple of the unit's width, and that `out` has room for it. Called after the
 * header was read, and once. Returns 0, or -1 and a message. */
int shardfeed_jpeg_decode(struct shardfeed_jpeg *jpeg, int channels,
                          const struct shardfeed_jpeg_region *region, unsigned char *out) {
  struct jpeg_decompress_struct *info = &jpeg->info;
  const uint32_t bottom = region->top + region->height;
  if (setjmp(jpeg->failed)) return -1;
  const int is_cmyk = info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK;
  info->out_color_space = channels == 1 ? JCS_GRAYSCALE
                          : is_cmyk     ? JCS_CMYK
                          : channels == 3 ? JCS_RGB
                                          : JCS_EXT_RGBA;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  jpeg_start_decompress(info);
  JDIMENSION left = region->left, width = region->width;
  jpeg_crop_scanline(info, &left, &width);
  if (left != region->left || width != region->width || bottom > info->output_height)
    fail(jpeg, "the region was not checked");
  if (region->top > 0) jpeg_skip_scanlines(info, region->top);
  read_rows(jpeg, channels, bottom, out);
  if (bottom == info->output_height) {
    /* Reads on to the end marker: TensorFlow refuses what is wrong up to there. */
    jpeg->is_finishing = 1;
    jpeg_finish_decompress(info);
  }
  return 0;
}
