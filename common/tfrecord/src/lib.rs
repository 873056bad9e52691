//! tfrecord
